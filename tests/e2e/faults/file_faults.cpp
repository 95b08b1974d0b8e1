// Preloaded into the program by test_file_faults.cpp. Counts the calls that change files below one
// folder and, at one of them, kills the process or makes the call fail. Settings come by
// environment:
//   HEARTH_FAULT_UNDER  the folder
//   HEARTH_FAULT_LOG    a file that gets the name of each counted call, one a line
//   HEARTH_FAULT_AT     the number of the call, from 1
//   HEARTH_FAULT        kill: before the call; tear: after half of a write; ENOSPC, EIO: it fails
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <string>

namespace {

std::atomic<long> calls = 0;

std::string setting(const char* name) {
  const char* value = getenv(name);
  return value ? value : "";
}

std::string path_of(int fd) {
  char target[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t n = readlink(link.c_str(), target, sizeof target);
  return n > 0 ? std::string(target, size_t(n)) : "";
}

std::string path_at(int dir, const char* path) {
  if (path[0] == '/') return path;
  char here[PATH_MAX];
  const std::string base = dir == AT_FDCWD ? (getcwd(here, sizeof here) ? here : "") : path_of(dir);
  return base + "/" + path;
}

enum class Fate { proceed, fail, tear };

// What is to become of a call; with `fail`, errno is set.
Fate fate_of(const char* call, const std::string& path) {
  static const std::string under = setting("HEARTH_FAULT_UNDER"), what = setting("HEARTH_FAULT");
  static const long at = atol(setting("HEARTH_FAULT_AT").c_str());
  static const int log = [] {
    const std::string file = setting("HEARTH_FAULT_LOG");
    // By number: open() is ours, and would count.
    return file.empty() ? -1
                        : int(syscall(SYS_openat, AT_FDCWD, file.c_str(),
                                      O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  }();
  if (under.empty() || (path != under && !path.starts_with(under + "/"))) return Fate::proceed;
  const long number = ++calls;
  if (log >= 0) {
    const std::string line = std::string(call) + " " + path + "\n";
    syscall(SYS_write, log, line.data(), line.size());
  }
  if (number != at) return Fate::proceed;
  if (what == "tear" && std::string_view(call).find("write") != std::string_view::npos)
    return Fate::tear;
  if (what == "kill" || what == "tear") kill(getpid(), SIGKILL);
  errno = what == "EIO" ? EIO : ENOSPC;
  return Fate::fail;
}

template <class F>
F* original(F*, const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

// Half of what was to be written, and the end.
template <class Write>
void tear(size_t size, Write write) {
  write(size / 2);
  kill(getpid(), SIGKILL);
}

}  // namespace

#define ORIGINAL(name) static auto* const real = original(&name, #name)
#define FAIL_IF_CHOSEN(name, path) \
  if (fate_of(#name, path) == Fate::fail) return -1

extern "C" {

#define OPEN(name)                                                                  \
  int name(const char* path, int flags, ...) {                                      \
    ORIGINAL(name);                                                                 \
    va_list list;                                                                   \
    va_start(list, flags);                                                          \
    const mode_t mode = mode_t(flags & O_CREAT ? va_arg(list, int) : 0);            \
    va_end(list);                                                                   \
    if (flags & (O_CREAT | O_TRUNC)) FAIL_IF_CHOSEN(name, path_at(AT_FDCWD, path)); \
    return real(path, flags, mode);                                                 \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                           \
  int name(int dir, const char* path, int flags, ...) {                        \
    ORIGINAL(name);                                                            \
    va_list list;                                                              \
    va_start(list, flags);                                                     \
    const mode_t mode = mode_t(flags & O_CREAT ? va_arg(list, int) : 0);       \
    va_end(list);                                                              \
    if (flags & (O_CREAT | O_TRUNC)) FAIL_IF_CHOSEN(name, path_at(dir, path)); \
    return real(dir, path, flags, mode);                                       \
  }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int fd, const void* bytes, size_t size) {
  ORIGINAL(write);
  const Fate fate = fate_of("write", path_of(fd));
  if (fate == Fate::tear) tear(size, [&](size_t n) { return real(fd, bytes, n); });
  return fate == Fate::fail ? -1 : real(fd, bytes, size);
}

#define PWRITE(name, offset_type)                                                         \
  ssize_t name(int fd, const void* bytes, size_t size, offset_type at) {                  \
    ORIGINAL(name);                                                                       \
    const Fate fate = fate_of(#name, path_of(fd));                                        \
    if (fate == Fate::tear) tear(size, [&](size_t n) { return real(fd, bytes, n, at); }); \
    return fate == Fate::fail ? -1 : real(fd, bytes, size, at);                           \
  }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t writev(int fd, const struct iovec* parts, int count) {
  ORIGINAL(writev);
  const Fate fate = fate_of("writev", path_of(fd));
  if (fate == Fate::tear) tear(size_t(count), [&](size_t n) { return real(fd, parts, int(n)); });
  return fate == Fate::fail ? -1 : real(fd, parts, count);
}

#define BY_FD(name, parameters, arguments) \
  int name parameters {                    \
    ORIGINAL(name);                        \
    FAIL_IF_CHOSEN(name, path_of(fd));     \
    return real arguments;                 \
  }
BY_FD(fsync, (int fd), (fd))
BY_FD(fdatasync, (int fd), (fd))
BY_FD(ftruncate, (int fd, off_t size), (fd, size))
BY_FD(ftruncate64, (int fd, off64_t size), (fd, size))

// The path that counts is the last one named: what a rename or a link makes.
#define BY_PATH(name, dir, path, parameters, arguments) \
  int name parameters {                                 \
    ORIGINAL(name);                                     \
    FAIL_IF_CHOSEN(name, path_at(dir, path));           \
    return real arguments;                              \
  }
BY_PATH(rename, AT_FDCWD, to, (const char* from, const char* to), (from, to))
BY_PATH(renameat, at, to, (int of, const char* from, int at, const char* to), (of, from, at, to))
BY_PATH(renameat2, at, to, (int of, const char* from, int at, const char* to, unsigned flags),
        (of, from, at, to, flags))
BY_PATH(unlink, AT_FDCWD, path, (const char* path), (path))
BY_PATH(unlinkat, dir, path, (int dir, const char* path, int flags), (dir, path, flags))
BY_PATH(remove, AT_FDCWD, path, (const char* path), (path))
BY_PATH(rmdir, AT_FDCWD, path, (const char* path), (path))
BY_PATH(mkdir, AT_FDCWD, path, (const char* path, mode_t mode), (path, mode))
BY_PATH(mkdirat, dir, path, (int dir, const char* path, mode_t mode), (dir, path, mode))
BY_PATH(symlink, AT_FDCWD, to, (const char* from, const char* to), (from, to))
BY_PATH(symlinkat, dir, to, (const char* from, int dir, const char* to), (from, dir, to))
BY_PATH(link, AT_FDCWD, to, (const char* from, const char* to), (from, to))
BY_PATH(linkat, at, to, (int of, const char* from, int at, const char* to, int flags),
        (of, from, at, to, flags))
BY_PATH(truncate, AT_FDCWD, path, (const char* path, off_t size), (path, size))
BY_PATH(truncate64, AT_FDCWD, path, (const char* path, off64_t size), (path, size))

}  // extern "C"
