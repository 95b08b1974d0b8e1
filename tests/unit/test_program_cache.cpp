// The cache of programs: sizes it rounds to, and which programs go when they hold too much.
#include "core/program_cache.h"

#include <gtest/gtest.h>

#include "cpu/backend.h"
#include "tape_case.h"

namespace hearth {
namespace {

TEST(Bucket, RoundsToPartsOfAPowerOfTwo) {
  EXPECT_EQ(bucket(1, {.parts = 8, .least = 64}), 64);
  EXPECT_EQ(bucket(65, {.parts = 8, .least = 64}), 128);
  EXPECT_EQ(bucket(1025, {.parts = 8, .least = 64}), 1280);
  EXPECT_EQ(bucket(2048, {.parts = 8, .least = 64}), 2048);
  EXPECT_EQ(bucket(33, {.parts = 1}), 64);
  EXPECT_EQ(bucket(33, {.parts = 1}, 48), 48);
  EXPECT_EQ(bucket(33, {.parts = 16}), 36);
  EXPECT_EQ(bucket(3, {.parts = 16}), 3);
  EXPECT_EQ(bucket(900, {.parts = 8, .widest = 64}), 960);
  EXPECT_EQ(bucket(1, {.least = 32, .widest = 32}, 24), 24);
}

struct CopyProgram : ShapePrograms {
  StateRef<float> x, y;
};

class CacheTest : public testing::Test {
 protected:
  // y = x over n numbers, through the cache.
  float run(int64_t n, float x) {
    CopyProgram& shape = cache.get(n, [&] { return "copy " + std::to_string(n); });
    if (shape.kinds.empty()) {
      ++recorded;
      Tape t(DType::f32, shape.name);
      t.push(copy_op(), {t.input("x", {n}, DType::f32)}, {t.result("y", {n}, DType::f32)});
      shape.kinds.push_back(std::make_unique<Exec>(std::move(t), memory));
      shape.x = {memory.state, shape.name + ".x"};
      shape.y = {memory.state, shape.name + ".y"};
    }
    std::vector<float> v(size_t(n), x);
    shape.x.upload(v);
    shape.kinds[0]->run();
    shape.y.download(v);
    return v.back();
  }

  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  Memory memory{*backend, nullptr};
  ProgramCache<int64_t, CopyProgram> cache{memory,
                                           42000};  // more than three programs of 1000 numbers hold
  int recorded = 0;
};

TEST_F(CacheTest, DropsTheLeastRecentlyUsed) {
  for (const int64_t n : {1000, 1001, 1002, 1003}) EXPECT_EQ(run(n, float(n)), float(n));
  EXPECT_EQ(run(1000, 2), 2);
  EXPECT_EQ(recorded, 4);
  EXPECT_EQ(cache.size(), 4u);
  EXPECT_EQ(run(1004, 3), 3);  // four are too many: 1001, the oldest, is gone
  EXPECT_FALSE(memory.state.has("copy 1001.x"));
  EXPECT_TRUE(memory.state.has("copy 1000.x"));
  EXPECT_EQ(run(1000, 4), 4);
  EXPECT_EQ(recorded, 5);
  EXPECT_EQ(run(1001, 5), 5);  // made again
  EXPECT_EQ(recorded, 6);
}

TEST_F(CacheTest, ClearsWhatTheProgramsHeld) {
  run(10, 1), run(100, 1);
  EXPECT_GT(memory.state.bytes("copy 10."), 0);
  EXPECT_EQ(memory.state.bytes("copy "), memory.state.bytes());
  cache.clear();
  EXPECT_EQ(memory.state.bytes(), 0);
  EXPECT_EQ(run(10, 7), 7);
}

}  // namespace
}  // namespace hearth
