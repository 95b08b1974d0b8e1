// Files and folders with errors that name them: whole reads, read-only maps, writes that are either
// complete and on the disk or absent, and logs of whole lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace hearth {

using Bytes = std::span<const std::byte>;

inline Bytes to_bytes(std::string_view s) { return std::as_bytes(std::span(s.data(), s.size())); }
inline std::string_view to_text(Bytes b) {
  return {reinterpret_cast<const char*>(b.data()), b.size()};
}

// An open file descriptor, closed with its owner.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd();
  Fd(Fd&& o) noexcept : fd_(o.release()) {}
  Fd& operator=(Fd&& o) noexcept;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Throws "[path] expected `wanted`, got <the text of errno>".
[[noreturn]] void fail_errno(const std::filesystem::path&, std::string_view wanted);
[[noreturn]] void fail_errno(const std::filesystem::path&, std::string_view wanted, int error);

// Opens with O_CLOEXEC; what is created is readable by all, less the umask.
Fd open_file(const std::filesystem::path&, int flags, std::string_view wanted);
// Opens a regular file to read it. A folder, FIFO, socket or device is an error, never a wait.
Fd open_regular(const std::filesystem::path&);
// Creates a file for writing. Whatever stands under the name is unlinked first: nothing is opened
// or followed that somebody else put there.
Fd create_file(const std::filesystem::path&, int access, std::string_view wanted);
void write_all(const Fd&, Bytes, const std::filesystem::path&);
// Writes all at the end of a file of `size` bytes, or cuts it back to that and throws.
void append_whole(const Fd&, Bytes, uint64_t size, const std::filesystem::path&);

// How large a file may be that is read whole. A larger one is refused before it is read.
constexpr size_t small_file_limit = size_t(64) << 20;  // settings, state, templates
constexpr size_t tokenizer_file_limit = size_t(256) << 20;
constexpr size_t rows_file_limit = size_t(4) << 30;  // rows of data that are kept in memory

// A regular file of at most `limit` bytes.
std::string read_file(const std::filesystem::path&, size_t limit = small_file_limit);

// A file's bytes, mapped read-only. The file must not be shortened while mapped.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path&);
  MappedFile(const Fd&, const std::filesystem::path& shown);
  ~MappedFile();
  MappedFile(MappedFile&& o) noexcept : bytes_(std::exchange(o.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& o) noexcept;
  Bytes bytes() const { return bytes_; }
  void forget(size_t end) const;  // the first bytes need not stay in memory: they can be read again

 private:
  Bytes bytes_;
};

// A file that appears under its name only when whole: written beside it, synced, then renamed.
// Destroyed before commit(), it leaves nothing behind.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(Bytes);
  // Asks the disk to write the last `bytes` now, without a wait, so that commit() finds them there.
  void start_writeback(uint64_t bytes);
  void commit();
  uint64_t size() const { return size_; }

 private:
  std::filesystem::path path_, tmp_;
  Fd fd_;
  uint64_t size_ = 0;
};

void write_file_atomic(const std::filesystem::path&, Bytes);
inline void write_file_atomic(const std::filesystem::path& path, std::string_view text) {
  write_file_atomic(path, to_bytes(text));
}

void fsync_file(const std::filesystem::path&);
void fsync_dir(const std::filesystem::path&);
void make_dirs(const std::filesystem::path&);     // with parents, synced; one that exists is fine
void make_new_dir(const std::filesystem::path&);  // the same, but the last one must be new

// A text file that only grows, by whole lines (JSONL). A line that cannot be written whole is taken
// back, so that the file never ends inside one.
class AppendLog {
 public:
  // Everything from byte `keep` on is dropped first: a resumed run continues the log at the offset
  // its checkpoint remembers. So is an unfinished last line, which a power cut leaves. A file
  // shorter than `keep` keeps its whole lines; size() tells.
  explicit AppendLog(std::filesystem::path, uint64_t keep = UINT64_MAX);
  void append(std::string_view line);  // without its newline
  void sync();
  uint64_t size() const { return size_; }

 private:
  std::filesystem::path path_;
  Fd fd_;
  uint64_t size_ = 0;
};

}  // namespace hearth
