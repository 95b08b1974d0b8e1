// Files and folders, with errors that name the path: whole-file reads, read-only maps, atomic and
// durable writes, and logs of complete lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hearth::inline sys {

using Bytes = std::span<const std::byte>;

inline Bytes to_bytes(std::string_view s) { return std::as_bytes(std::span(s.data(), s.size())); }
inline std::string_view to_text(Bytes b) {
  return {reinterpret_cast<const char*>(b.data()), b.size()};
}

// An open file descriptor, closed by its owner's destructor.
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

// Throws "[path] could not `action`: <errno message>"; `action` is a verb phrase such as "read the
// file".
[[noreturn]] void fail_errno(const std::filesystem::path&, std::string_view action);
[[noreturn]] void fail_errno(const std::filesystem::path&, std::string_view action, int error);

// Opens with O_CLOEXEC; new files have mode 0666 minus the umask. `action` is for fail_errno().
Fd open_file(const std::filesystem::path&, int flags, std::string_view action);
// Opens a regular file for reading. A folder, FIFO, socket or device is an error and never blocks.
Fd open_regular(const std::filesystem::path&);
// The same without following a link at the end of the path. Invalid if there is no such file.
Fd open_plainly(const std::filesystem::path&);
// Creates a file for writing. An existing file or link is unlinked first, so nothing that another
// user put there is opened or followed.
Fd create_file(const std::filesystem::path&, int access, std::string_view action);
// Takes a lock that lasts until the Fd is closed, without waiting. False: another process holds a
// lock that excludes it. Any other failure throws, as on a file system without locks.
// (Not named try_lock: std::try_lock takes paths too.)
enum class FileLock : uint8_t { shared, exclusive };
bool try_flock(const Fd&, FileLock, const std::filesystem::path&);
void write_all(const Fd&, Bytes, const std::filesystem::path&);
// Appends all bytes to a file of `size` bytes; on failure truncates it to `size` again and throws.
void append_whole(const Fd&, Bytes, uint64_t size, const std::filesystem::path&);

// Size limits of files that are read whole. A larger file is rejected before it is read.
constexpr size_t small_file_limit = size_t(64) << 20;  // settings, state, templates
constexpr size_t tokenizer_file_limit = size_t(256) << 20;
constexpr size_t rows_file_limit = size_t(4) << 30;  // data rows kept in memory

// Reads a regular file of at most `limit` bytes.
std::string read_file(const std::filesystem::path&, size_t limit = small_file_limit);

// A file's bytes, mapped read-only. The file must not be truncated while mapped.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path&);
  MappedFile(const Fd&, const std::filesystem::path& shown);
  ~MappedFile();
  MappedFile(MappedFile&& o) noexcept : bytes_(std::exchange(o.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& o) noexcept;
  Bytes bytes() const { return bytes_; }
  void forget(size_t end) const;  // drops the first `end` bytes from memory; they can be read again

 private:
  Bytes bytes_;
};

// A file that appears under its name only when complete: written under a temporary name, synced,
// then renamed. Destroyed before commit(), it leaves nothing behind.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(Bytes);
  // Asks the disk to start writing the last `bytes` without waiting, so that commit() waits less.
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
void make_dirs(const std::filesystem::path&);  // with parents, synced; may already exist
// The folders that make_dirs() would create, the deepest one first.
std::vector<std::filesystem::path> missing_dirs(const std::filesystem::path&);
void make_new_dir(const std::filesystem::path&);  // the same, but the last one must be new
// Removes the folders in `dir` named `prefix` + process id whose process has ended or is this one.
void remove_leftovers(const std::filesystem::path& dir, std::string_view prefix);

// A text file that only grows, by complete lines (JSONL). A line that cannot be written completely
// is removed again, so the file never ends inside a line.
class AppendLog {
 public:
  // First drops everything from byte `keep` on: a resumed run continues the log at the offset
  // stored in its checkpoint. Also drops an incomplete last line, which a power cut can leave. A
  // file shorter than `keep` keeps its complete lines; see size().
  explicit AppendLog(std::filesystem::path, uint64_t keep = UINT64_MAX);
  void append(std::string_view line);  // without a newline
  void sync();
  uint64_t size() const { return size_; }

 private:
  std::filesystem::path path_;
  Fd fd_;
  uint64_t size_ = 0;
};

}  // namespace hearth::inline sys
