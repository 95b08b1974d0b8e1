// Locks of files and folders: held by another process, interrupted, or refused by the file system.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <deque>

#include "data_files.h"
#include "formats/run_folder.h"
#include "sys/files/files.h"

namespace {

std::deque<int>& flock_failures() {  // errors of the next calls
  static std::deque<int> all;
  return all;
}

}  // namespace

// In place of the C library's, for every call of this program.
extern "C" int flock(int fd, int operation) noexcept {
  std::deque<int>& failures = flock_failures();
  if (failures.empty()) return int(syscall(SYS_flock, fd, operation));
  errno = failures.front();
  failures.pop_front();
  return -1;
}

namespace hearth {
namespace {

namespace fs = std::filesystem;

class FileLocks : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_TRUE(flock_failures().empty());
    flock_failures().clear();
  }
  Fd opened() const { return open_file(folder.path(), O_RDONLY | O_DIRECTORY, "open the folder"); }

  const TemporaryFolder folder;
};

TEST_F(FileLocks, ExcludeEachOtherUntilTheyAreClosed) {
  const auto lock = [&](const Fd& fd, FileLock kind) { return try_flock(fd, kind, folder.path()); };
  const Fd a = opened(), b = opened();
  EXPECT_TRUE(lock(a, FileLock::shared));
  EXPECT_TRUE(lock(b, FileLock::shared));
  EXPECT_FALSE(lock(a, FileLock::exclusive));
  {
    const Fd c = opened();
    EXPECT_FALSE(lock(c, FileLock::exclusive));
  }
}

TEST_F(FileLocks, AnInterruptedCallIsRepeated) {
  flock_failures() = {EINTR, EINTR};
  EXPECT_TRUE(try_flock(opened(), FileLock::exclusive, folder.path()));
  flock_failures() = {EINTR, EINTR};
  EXPECT_TRUE(lock_run(folder.path()));
  put_file(folder / "a.txt", "text");
  flock_failures() = {EINTR};
  prepare(byte_spec(folder / "out", {(folder / "a.txt").string()}));
  // A second call finds the folder there, and locks it before it writes.
  flock_failures() = {EINTR};
  prepare(byte_spec(folder / "out", {(folder / "a.txt").string()}));
}

TEST_F(FileLocks, AFileSystemWithoutLocksIsNotAnotherProcess) {
  const auto refused = [](auto f) {
    flock_failures() = {ENOLCK};
    return error_of(f);
  };
  const std::string why = "] could not take a lock (flock): No locks available";
  EXPECT_EQ(refused([&] { lock_run(folder.path()); }), "[" + (folder / ".lock").string() + why);
  fs::create_directory(folder / "out");
  put_file(folder / "a.txt", "text");
  EXPECT_EQ(refused([&] { prepare(byte_spec(folder / "out", {(folder / "a.txt").string()})); }),
            "[" + (folder / "out").string() + why);
  flock_failures() = {ENOLCK};
  EXPECT_FALSE(is_running(folder.path()));
}

}  // namespace
}  // namespace hearth
