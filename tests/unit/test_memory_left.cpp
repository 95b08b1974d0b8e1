// The memory that control groups leave, from folders with the files of a group.
#include "sys/memory.h"

#include <gtest/gtest.h>

#include <fstream>

#include "unit/test_io_support.h"

namespace hearth {
namespace {

using test::TempDir;

constexpr int64_t mib = 1 << 20;

struct Group {
  TempDir folder;

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder.path() / name) << text;
  }
  int64_t left(bool v2) const { return memory_left_in_group(folder.path().string(), v2); }
};

TEST(MemoryLeft, CacheCountsAsFree) {
  const Group v2;
  v2.write("memory.max", std::to_string(100 * mib));
  v2.write("memory.current", std::to_string(70 * mib));
  EXPECT_EQ(v2.left(true), 30 * mib);
  v2.write("memory.stat",
           "anon 5\ninactive_file " + std::to_string(20 * mib) + "\nactive_file 7\n");
  EXPECT_EQ(v2.left(true), 50 * mib);
  v2.write("memory.current", std::to_string(130 * mib));
  EXPECT_EQ(v2.left(true), 0);
}

TEST(MemoryLeft, GroupsWithoutALimit) {
  const Group none, v2;
  EXPECT_EQ(none.left(true), unlimited_memory);
  EXPECT_EQ(none.left(false), unlimited_memory);
  v2.write("memory.max", "max\n");
  v2.write("memory.current", "4096\n");
  EXPECT_EQ(v2.left(true), unlimited_memory);
}

// Without a limit, v1 reports the largest multiple of a page. For a moment after the page cache has
// been dropped, the group's cache is larger than the memory in use.
TEST(MemoryLeft, MoreCacheThanUsedIsNotMoreThanTheLimit) {
  const Group v1;
  const int64_t limit = unlimited_memory / 4096 * 4096;
  v1.write("memory.limit_in_bytes", std::to_string(limit));
  v1.write("memory.usage_in_bytes", std::to_string(170 * mib));
  v1.write("memory.stat",
           "inactive_file 5\ntotal_inactive_file " + std::to_string(900 * mib) + "\n");
  EXPECT_EQ(v1.left(false), limit);
  v1.write("memory.limit_in_bytes", std::to_string(200 * mib));
  EXPECT_EQ(v1.left(false), 200 * mib);
}

TEST(MemoryLeft, ThisProcessHasSome) { EXPECT_GT(available_memory(), 0); }

}  // namespace
}  // namespace hearth
