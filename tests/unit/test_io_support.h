// Shared by many unit tests: a temporary folder, forked children, and the text of an Error.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <string>

#include "sys/error.h"
#include "sys/files/files.h"
#include "test_data.h"

namespace hearth::test {

class TempDir {
 public:
  explicit TempDir(const std::filesystem::path& base = std::filesystem::temp_directory_path()) {
    std::string name = (base / "hearth-io-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// A folder for tests that write a lot and need no disk.
inline std::filesystem::path memory_dir() {
  return access("/dev/shm", W_OK) == 0 ? "/dev/shm" : std::filesystem::temp_directory_path();
}

// The message of the Error that `f` throws, or "" if it throws none.
inline std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) { return e.what(); }
  return "";
}

inline void expect_error(const std::string& message, std::string_view part) {
  EXPECT_NE(message.find(part), message.npos) << "got: " << message << "\nwanted: " << part;
  EXPECT_EQ(message.find('\n'), message.npos) << "more than one line: " << message;
}

inline int names_in(const std::filesystem::path& dir) {
  int n = 0;
  for ([[maybe_unused]] const auto& e : std::filesystem::directory_iterator(dir)) ++n;
  return n;
}

// The exit code of a child process that runs `f`; non-fatal test failures give 1.
inline int run_in_child(const std::function<int()>& f) {
  const pid_t child = fork();
  if (child == 0) {
    int code = 99;
    try {
      code = f();
    } catch (const std::exception& e) { fmt::print(stderr, "in the child: {}\n", e.what()); }
    _exit(testing::Test::HasFailure() ? 1 : code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

constexpr int no_mount = 42;  // exit code: this process is not allowed to mount

// Mounts a tmpfs with these options on `dir`, visible to this process only.
inline bool mount_tmpfs(const std::filesystem::path& dir, unsigned long flags,
                        const char* options) {
  return unshare(CLONE_NEWNS) == 0 &&
         mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", dir.c_str(), "tmpfs", flags, options) == 0;
}

}  // namespace hearth::test
