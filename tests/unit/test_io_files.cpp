// Files: whole reads, maps, atomic writes, logs, and what a full or read-only disk says.
#include "sys/files/files.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <csignal>
#include <cstring>
#include <fstream>
#include <thread>

#include "sys/compression/byte_stream.h"
#include "sys/files/lost_mapping.h"
#include "sys/hash/hash.h"
#include "test_io_support.h"

namespace hearth::test {
namespace {

namespace fs = std::filesystem;

void write_plain(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(IoFiles, ReadsWholeFiles) {
  const TempDir dir;
  const std::string text = std::string("a\0b\n", 4) + std::string(100'000, 'x');
  write_plain(dir / "f", text);
  EXPECT_EQ(read_file(dir / "f"), text);
  write_plain(dir / "empty", "");
  EXPECT_EQ(read_file(dir / "empty"), "");
  EXPECT_NE(read_file("/proc/self/status").find("Pid:"), std::string::npos);  // st_size is 0
}

TEST(IoFiles, ReadErrorsNameThePath) {
  const TempDir dir;
  const std::string missing = (dir / "missing").string();
  expect_error(error_of([&] { read_file(missing); }), missing + "] could not read the file: ");
  expect_error(error_of([&] { MappedFile m(missing); }), "No such file");
  expect_error(error_of([&] { read_file(dir.path()); }), "got a folder");
  expect_error(error_of([&] { MappedFile m(dir.path()); }), "got a folder");
}

TEST(IoFiles, RefusesAFileBeyondTheLimitBeforeReadingIt) {
  const TempDir dir;
  write_plain(dir / "f", "12345");
  EXPECT_EQ(read_file(dir / "f", 5), "12345");
  expect_error(error_of([&] { read_file(dir / "f", 4); }), "at most 4 bytes, got 5");
  // Sparse: to read it would take all memory there is.
  write_plain(dir / "huge", "");
  fs::resize_file(dir / "huge", uint64_t(1) << 40);
  expect_error(error_of([&] { read_file(dir / "huge"); }), "at most 67108864 bytes");
  // st_size is 0 there: the limit holds while it is read.
  expect_error(error_of([&] { read_file("/proc/self/status", 100); }), "at most 100 bytes");
}

// None of these may make open() or read() wait.
TEST(IoFiles, RefusesWhatIsNoRegularFile) {
  const TempDir dir;
  ASSERT_EQ(mkfifo((dir / "fifo").c_str(), 0600), 0);
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (dir / "socket").c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const auto check = [&](const fs::path& path, const char* kind) {
    expect_error(error_of([&] { read_file(path); }), kind);
    expect_error(error_of([&] { MappedFile m(path); }), kind);
    expect_error(error_of([&] { ByteStream s(path); }), kind);
    expect_error(error_of([&] { digest_file(path.parent_path(), path.filename().string()); }),
                 kind);
  };
  check(dir / "fifo", "expected a regular file, got a FIFO");
  check(dir / "socket", "expected a regular file, got a socket");
  check("/dev/zero", "expected a regular file, got a device");
  check(dir.path(), "expected a regular file, got a folder");
  close(fd);
}

// A link laid under the name of a temporary file leads nowhere: it is replaced, not followed.
TEST(IoFiles, TemporaryFilesFollowNoLink) {
  const TempDir dir;
  write_plain(dir / "victim", "untouched");
  fs::create_symlink(dir / "victim", dir / fmt::format(".tmp-f-{}", getpid()));
  write_file_atomic(dir / "f", "new");
  EXPECT_EQ(read_file(dir / "victim"), "untouched");
  EXPECT_EQ(read_file(dir / "f"), "new");
  EXPECT_FALSE(fs::is_symlink(dir / "f"));
  expect_error(error_of([&] { make_new_dir(dir.path()); }), "File exists");
}

TEST(IoFiles, LogsFollowNoLink) {
  const TempDir dir;
  write_plain(dir / "victim", "untouched");
  fs::create_symlink(dir / "victim", dir / "log.jsonl");
  expect_error(error_of([&] { AppendLog(dir / "log.jsonl", 3); }), "symbolic link");
  EXPECT_EQ(read_file(dir / "victim"), "untouched");
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);
  expect_error(error_of([&] { AppendLog(dir / "pipe"); }), "got a named pipe");
}

TEST(IoFiles, MapsAndMoves) {
  const TempDir dir;
  write_plain(dir / "f", "hello");
  write_plain(dir / "empty", "");
  MappedFile a(dir / "f");
  EXPECT_EQ(to_text(a.bytes()), "hello");
  MappedFile b = std::move(a);
  EXPECT_TRUE(a.bytes().empty());
  EXPECT_EQ(to_text(b.bytes()), "hello");
  b = MappedFile(dir / "empty");
  EXPECT_TRUE(b.bytes().empty());
}

TEST(IoFiles, AtomicWriteReplacesOrLeavesAlone) {
  const TempDir dir;
  write_file_atomic(dir / "f", "one");
  write_file_atomic(dir / "f", "two");
  EXPECT_EQ(read_file(dir / "f"), "two");
  {
    AtomicFile dropped(dir / "f");
    dropped.write(to_bytes("three"));
  }
  EXPECT_EQ(read_file(dir / "f"), "two");
  EXPECT_EQ(names_in(dir.path()), 1);
  expect_error(error_of([&] { write_file_atomic(dir / "no/f", "x"); }),
               "[" + (dir / "no/f").string() + "] cannot create the file: the folder " +
                   (dir / "no").string() + " does not exist");
  expect_error(error_of([&] { write_file_atomic(dir / "f/g", "x"); }), "Not a directory");
}

TEST(IoFiles, MakesFolders) {
  const TempDir dir;
  make_dirs(dir / "a/b/c");
  make_dirs(dir / "a/b/c");
  EXPECT_TRUE(fs::is_directory(dir / "a/b/c"));
  write_plain(dir / "f", "");
  expect_error(error_of([&] { make_dirs(dir / "f"); }), "File exists");
  expect_error(error_of([&] { make_dirs(dir / "f/g"); }), "f");
}

TEST(IoFiles, LogGrowsByWholeLines) {
  const TempDir dir;
  uint64_t after_two = 0;
  {
    AppendLog log(dir / "log.jsonl");
    log.append("{\"step\":1}");
    log.append("{\"step\":2}");
    after_two = log.size();
    log.append("{\"step\":3}");
    log.sync();
    expect_error(error_of([&] { log.append("a\nb"); }), "one line");
  }
  EXPECT_EQ(fs::file_size(dir / "log.jsonl"), after_two + 11);
  AppendLog resumed(dir / "log.jsonl", after_two);
  EXPECT_EQ(resumed.size(), after_two);
  resumed.append("again");
  EXPECT_EQ(read_file(dir / "log.jsonl"), "{\"step\":1}\n{\"step\":2}\nagain\n");
}

TEST(IoFiles, ResumedLogDropsAnUnfinishedLine) {
  const TempDir dir;
  const std::string long_tail(10'000, 'x');  // the newline lies blocks before the end
  write_plain(dir / "log", "whole\n" + long_tail);
  AppendLog log(dir / "log", 1'000'000);  // the file is shorter than its checkpoint remembers
  EXPECT_EQ(log.size(), 6u);
  log.append("next");
  EXPECT_EQ(read_file(dir / "log"), "whole\nnext\n");
  write_plain(dir / "torn", long_tail);
  EXPECT_EQ(AppendLog(dir / "torn", 1'000'000).size(), 0u);
  write_plain(dir / "perf", "{\"step\":1}\n{\"st");
  AppendLog(dir / "perf").append("{\"step\":2}");  // no checkpoint remembers this one's length
  EXPECT_EQ(read_file(dir / "perf"), "{\"step\":1}\n{\"step\":2}\n");
}

TEST(IoFiles, FullDeviceIsOneClearError) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "needs /dev/full";
  AppendLog log("/dev/full");
  expect_error(error_of([&] { log.append("0123456789"); }),
               "[/dev/full] could not write 11 more bytes: No space left on device");
}

TEST(IoFiles, FullDiskKeepsTheOldFile) {
  const TempDir dir;
  const int code = run_in_child([&] {
    if (!mount_tmpfs(dir.path(), 0, "size=64k")) return no_mount;
    write_file_atomic(dir / "f", "old");
    AppendLog log(dir / "log");
    log.append("whole");
    const std::string big(1 << 20, 'x');
    expect_error(error_of([&] { write_file_atomic(dir / "f", big); }), "No space left on device");
    EXPECT_EQ(read_file(dir / "f"), "old");
    expect_error(error_of([&] { log.append(big); }), "No space left on device");
    EXPECT_EQ(read_file(dir / "log"), "whole\n");
    EXPECT_EQ(names_in(dir.path()), 2);
    return 0;
  });
  if (code == no_mount) GTEST_SKIP() << "needs the right to mount a small tmpfs";
  EXPECT_EQ(code, 0);
}

TEST(IoFiles, FileSizeLimitKeepsTheOldFile) {
  const TempDir dir;
  const int code = run_in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    write_file_atomic(dir / "f", "old");
    AppendLog log(dir / "log");
    log.append("whole");
    const rlimit limit{1000, RLIM_INFINITY};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
    const std::string big(1500, 'x');
    expect_error(error_of([&] { write_file_atomic(dir / "f", big); }),
                 "could not write 500 more bytes");
    expect_error(error_of([&] { log.append(big); }), "File too large");
    EXPECT_EQ(read_file(dir / "f"), "old");
    EXPECT_EQ(read_file(dir / "log"), "whole\n");
    return 0;
  });
  EXPECT_EQ(code, 0);
}

TEST(IoFiles, ReadOnlyFolderIsOneClearError) {
  const TempDir dir;
  const auto check = [&] {
    for (const std::string& error :
         {error_of([&] { write_file_atomic(dir / "f", "x"); }),
          error_of([&] { AppendLog log(dir / "log"); }), error_of([&] { make_dirs(dir / "d"); })}) {
      expect_error(error, "[" + dir.path().string());
      EXPECT_TRUE(error.find("Read-only file system") != error.npos ||
                  error.find("Permission denied") != error.npos)
          << error;
    }
    return 0;
  };
  if (geteuid() != 0) {  // root passes permission checks, but not a read-only mount
    fs::permissions(dir.path(), fs::perms::owner_read | fs::perms::owner_exec);
    check();
    fs::permissions(dir.path(), fs::perms::owner_all);
    return;
  }
  const int code =
      run_in_child([&] { return mount_tmpfs(dir.path(), MS_RDONLY, "") ? check() : no_mount; });
  if (code == no_mount) GTEST_SKIP() << "needs the right to mount, or a user other than root";
  EXPECT_EQ(code, 0);
}

// Threads that read a truncated file at the same time report it once.
TEST(IoFiles, ATruncatedMappingIsOneLine) {
  const TempDir dir;
  for (int round = 0; round < 20; ++round) {
    write_plain(dir / "f", std::string(1 << 16, 'x'));
    const int code = run_in_child([&] {
      const int err = open((dir / "err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      if (err < 0 || dup2(err, STDERR_FILENO) < 0) return 2;
      explain_lost_mappings();
      const MappedFile file(dir / "f");
      fs::resize_file(dir / "f", 0);
      std::barrier together(4);
      std::vector<std::jthread> readers;
      std::atomic<int> sum = 0;
      for (int i = 0; i < 4; ++i)
        readers.emplace_back([&] {
          together.arrive_and_wait();
          sum += int(file.bytes().back());
        });
      readers.clear();
      return 3;  // nothing was raised
    });
    EXPECT_EQ(code, 1);
    const std::string err = read_file(dir / "err");
    EXPECT_EQ(std::ranges::count(err, '\n'), 1) << err;
    EXPECT_NE(err.find("the file was truncated"), err.npos) << err;
  }
}

}  // namespace
}  // namespace hearth::test
