#include "sys/files/files.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <system_error>

#include "sys/error.h"
#include "sys/files/lost_mapping.h"

namespace hearth::inline sys {
namespace {

namespace fs = std::filesystem;

const char* kind_of(mode_t mode) {
  return S_ISDIR(mode)    ? "a folder"
         : S_ISFIFO(mode) ? "a FIFO"
         : S_ISSOCK(mode) ? "a socket"
                          : "a device";
}

// Returns an empty Fd on failure, with the error in errno.
Fd try_open(const fs::path& path, int flags) {
  for (;;) {
    Fd fd(open(path.c_str(), flags | O_CLOEXEC, 0666));
    if (fd || errno != EINTR) return fd;  // EINTR: a signal arrived while opening a pipe
  }
}

struct stat stat_of(const Fd& fd, const fs::path& path) {
  struct stat st {};
  if (fstat(fd.get(), &st) != 0) fail_errno(path, "get the size of the file");
  if (S_ISDIR(st.st_mode)) fail(path.string(), "expected a file, got a folder");
  return st;
}

void sync(const Fd& fd, const fs::path& path) {
  while (fsync(fd.get()) != 0)
    if (errno != EINTR) fail_errno(path, "sync the file to disk");
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// The folder in which a file is to be written.
fs::path folder_for(const fs::path& path) {
  const fs::path folder = folder_of(path);
  if (std::error_code none; !fs::exists(folder, none))
    fail(path.string(), "cannot create the file: the folder {} does not exist", folder.string());
  return folder;
}

// The end of the last complete line within the first `size` bytes.
uint64_t end_of_last_line(const Fd& fd, uint64_t size, const fs::path& path) {
  char buffer[4096];
  while (size > 0) {
    const uint64_t begin = size - std::min<uint64_t>(size, sizeof buffer);
    const ssize_t n = pread(fd.get(), buffer, size - begin, off_t(begin));
    if (n != ssize_t(size - begin)) fail_errno(path, "read the last line");
    const std::string_view piece(buffer, size_t(n));
    if (const size_t at = piece.rfind('\n'); at != piece.npos) return begin + at + 1;
    size = begin;
  }
  return 0;
}

}  // namespace

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

Fd& Fd::operator=(Fd&& o) noexcept {
  if (this != &o) {
    if (fd_ >= 0) close(fd_);
    fd_ = o.release();
  }
  return *this;
}

void fail_errno(const fs::path& path, std::string_view action) { fail_errno(path, action, errno); }

void fail_errno(const fs::path& path, std::string_view action, int error) {
  fail(path.string(), "could not {}: {}", action, std::generic_category().message(error));
}

Fd open_file(const fs::path& path, int flags, std::string_view action) {
  Fd fd = try_open(path, flags);
  if (!fd) fail_errno(path, action);
  return fd;
}

Fd open_regular(const fs::path& path) {
  // O_NONBLOCK: opening a FIFO without a writer would block. EWOULDBLOCK means that another process
  // holds a lease on the file; only regular files have leases, so waiting for it is fine.
  Fd fd = try_open(path, O_RDONLY | O_NONBLOCK);
  if (!fd && errno == EWOULDBLOCK) fd = try_open(path, O_RDONLY);
  if (!fd && errno == ENXIO) fail(path.string(), "expected a regular file, got a socket");
  if (!fd) fail_errno(path, "read the file");
  struct stat st {};
  if (fstat(fd.get(), &st) != 0) fail_errno(path, "get the size of the file");
  if (!S_ISREG(st.st_mode))
    fail(path.string(), "expected a regular file, got {}", kind_of(st.st_mode));
  return fd;
}

Fd open_plainly(const std::filesystem::path& path) {
  Fd fd(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat s {};
  if (fd && (fstat(fd.get(), &s) != 0 || !S_ISREG(s.st_mode))) return Fd();
  return fd;
}

Fd create_file(const fs::path& path, int access, std::string_view action) {
  if (unlink(path.c_str()) != 0 && errno != ENOENT) fail_errno(path, "remove the existing file");
  return open_file(path, access | O_CREAT | O_EXCL | O_NOFOLLOW, action);
}

bool try_flock(const Fd& fd, FileLock lock, const fs::path& path) {
  const int operation = lock == FileLock::shared ? LOCK_SH : LOCK_EX;
  while (flock(fd.get(), operation | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) fail_errno(path, "take a lock (flock)");
  }
  return true;
}

void write_all(const Fd& fd, Bytes bytes, const fs::path& path) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = write(fd.get(), bytes.data() + done, bytes.size() - done);
    if (n >= 0) {
      done += size_t(n);
    } else if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
      fail_errno(path, fmt::format("write {} more bytes", bytes.size() - done));
    } else if (errno != EINTR) {
      fail_errno(path, fmt::format("write {} bytes", bytes.size() - done));
    }
  }
}

void append_whole(const Fd& fd, Bytes bytes, uint64_t size, const fs::path& path) {
  try {
    write_all(fd, bytes, path);
  } catch (...) {
    [[maybe_unused]] const int ignored = ftruncate(fd.get(), off_t(size));
    throw;
  }
}

std::string read_file(const fs::path& path, size_t limit) {
  const Fd fd = open_regular(path);
  const auto refuse = [&](const std::string& got) {
    fail(path.string(), "expected a file of at most {} bytes, got {}", limit, got);
  };
  const auto hint = uint64_t(stat_of(fd, path).st_size);
  if (hint > limit) refuse(fmt::format("{}", hint));
  std::string text;
  // The size is only a hint: files in /proc report 0. One extra byte detects the end in one pass.
  text.resize(size_t(hint) + 1);
  size_t size = 0;
  for (;;) {
    const ssize_t n = read(fd.get(), text.data() + size, text.size() - size);
    if (n == 0) break;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(path, "read the file");
    size += size_t(n);
    if (size > limit) refuse("more");
    if (size == text.size()) text.resize(std::min(size * 2, limit + 1));
  }
  text.resize(size);
  return text;
}

MappedFile::MappedFile(const fs::path& path) : MappedFile(open_regular(path), path) {}

MappedFile::MappedFile(const Fd& fd, const fs::path& path) {
  const size_t size = size_t(stat_of(fd, path).st_size);
  if (size == 0) return;  // mmap rejects length 0
  void* p = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (p == MAP_FAILED) fail_errno(path, "map the file into memory");
  bytes_ = {static_cast<const std::byte*>(p), size};
  note_mapping(bytes_.data(), size, path);
}

MappedFile::~MappedFile() {
  if (bytes_.empty()) return;
  drop_mapping(bytes_.data());
  munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::forget(size_t end) const {
  const size_t page = size_t(sysconf(_SC_PAGESIZE)), whole = std::min(end, bytes_.size()) / page;
  if (whole > 0) madvise(const_cast<std::byte*>(bytes_.data()), whole * page, MADV_DONTNEED);
}

MappedFile& MappedFile::operator=(MappedFile&& o) noexcept {
  std::swap(bytes_, o.bytes_);
  return *this;
}

AtomicFile::AtomicFile(fs::path path)
    : path_(std::move(path)),
      tmp_(folder_for(path_) / fmt::format(".tmp-{}-{}", path_.filename().string(), getpid())),
      fd_(create_file(tmp_, O_WRONLY, "create the file")) {}

AtomicFile::~AtomicFile() {
  if (fd_) unlink(tmp_.c_str());
}

void AtomicFile::write(Bytes bytes) {
  write_all(fd_, bytes, path_);
  size_ += bytes.size();
}

void AtomicFile::start_writeback(uint64_t bytes) {
  // Only a hint: some file systems do not support it, and commit() syncs anyway.
  sync_file_range(fd_.get(), off_t(size_ - bytes), off_t(bytes), SYNC_FILE_RANGE_WRITE);
}

void AtomicFile::commit() {
  sync(fd_, path_);
  if (rename(tmp_.c_str(), path_.c_str()) != 0)
    fail_errno(path_, "move the finished file into place");
  fd_ = Fd();
  fsync_dir(folder_of(path_));
}

void write_file_atomic(const fs::path& path, Bytes bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void fsync_file(const fs::path& path) { sync(open_file(path, O_RDONLY, "open the file"), path); }

void fsync_dir(const fs::path& path) {
  sync(open_file(path, O_RDONLY | O_DIRECTORY, "open the folder"), path);
}

void make_dirs(const fs::path& path) {
  std::error_code ignored;
  if (path.empty() || fs::is_directory(path, ignored)) return;
  make_dirs(path.parent_path());
  if (mkdir(path.c_str(), 0777) == 0) {
    fsync_dir(folder_of(path));
  } else if (errno != EEXIST || !fs::is_directory(path, ignored)) {
    fail_errno(path, "create the folder");
  }
}

std::vector<fs::path> missing_dirs(const fs::path& path) {
  std::error_code unknown;
  std::vector<fs::path> missing;
  if (path.empty()) return missing;
  for (auto at = fs::absolute(path); !fs::exists(at, unknown) && at != at.parent_path();
       at = at.parent_path())
    missing.push_back(at);
  return missing;
}

void make_new_dir(const fs::path& path) {
  make_dirs(path.parent_path());
  if (mkdir(path.c_str(), 0777) != 0) fail_errno(path, "create a new folder");
  fsync_dir(folder_of(path));
}

void remove_leftovers(const fs::path& dir, std::string_view prefix) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix) || !fs::is_directory(entry.symlink_status(ignored))) continue;
    const char* end = name.data() + name.size();
    pid_t pid = 0;
    const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, pid);
    if (error != std::errc{} || stop != end || pid <= 0) continue;
    const bool gone = kill(pid, 0) != 0 && errno == ESRCH;
    if (gone || pid == getpid()) fs::remove_all(entry.path(), ignored);
  }
}

AppendLog::AppendLog(fs::path path, uint64_t keep)
    : path_(std::move(path)),
      fd_(open_file(path_, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK,
                    "append to the file")),
      size_(uint64_t(stat_of(fd_, path_).st_size)) {
  if (S_ISFIFO(stat_of(fd_, path_).st_mode))
    fail(path_.string(), "expected a file to append to, got a named pipe");
  const uint64_t end = end_of_last_line(fd_, std::min(size_, keep), path_);
  if (end == size_) return;
  if (ftruncate(fd_.get(), off_t(end)) != 0) fail_errno(path_, "truncate the file");
  size_ = end;
}

void AppendLog::append(std::string_view line) {
  if (line.find('\n') != line.npos) fail(path_.string(), "expected one line, got several");
  const std::string whole = std::string(line) + '\n';
  append_whole(fd_, to_bytes(whole), size_, path_);
  size_ += whole.size();
}

void AppendLog::sync() { hearth::sync(fd_, path_); }

}  // namespace hearth::inline sys
