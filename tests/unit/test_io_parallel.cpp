// Jobs that run several at a time, and files that are hashed while they are written.
#include "sys/parallel.h"

#include <atomic>

#include "sys/files/hashed_file.h"
#include "test_io_support.h"

namespace hearth::test {
namespace {

TEST(IoParallel, RunsEveryJobOnce) {
  for (const size_t count : {0, 1, 2, 100}) {
    std::vector<std::atomic<int>> runs(count);
    in_parallel(count, [&](size_t i) { ++runs[i]; });
    for (const auto& n : runs) EXPECT_EQ(n, 1);
  }
}

TEST(IoParallel, ThrowsTheFirstErrorAndStartsNoMore) {
  std::atomic<int> started = 0;
  const std::string error = error_of([&] {
    in_parallel(100'000, [&](size_t i) {
      ++started;
      if (i >= 3) fail("job", "number {}", i);
    });
  });
  EXPECT_EQ(error, "[job] number 3");
  EXPECT_LT(started, 100'000);
}

TEST(IoParallel, AHashedFileHoldsAllPiecesOfAnySize) {
  const TempDir dir;
  const size_t mib = size_t(1) << 20;
  std::vector<std::byte> all;
  {
    HashedFile file(dir / "f");
    for (const size_t size : {size_t(5), size_t(0), mib - 1, mib, mib + 1, size_t(7), 20 * mib + 3,
                              size_t(100), mib - 100, size_t(1)}) {
      std::vector<std::byte> piece(size);
      for (size_t i = 0; i < size; ++i) piece[i] = std::byte((all.size() + i) * 2654435761u >> 13);
      file.write(piece);
      all.insert(all.end(), piece.begin(), piece.end());
      EXPECT_EQ(file.size(), all.size());
    }
    EXPECT_EQ(names_in(dir.path()), 1);
    EXPECT_FALSE(std::filesystem::exists(dir / "f"));
    EXPECT_EQ(file.commit(), sha256_hex(all));
  }
  const std::string read = read_file(dir / "f");
  EXPECT_TRUE(std::ranges::equal(to_bytes(read), all));
  { HashedFile(dir / "g").write(all); }
  EXPECT_EQ(names_in(dir.path()), 1) << "without commit() nothing remains";
}

}  // namespace
}  // namespace hearth::test
