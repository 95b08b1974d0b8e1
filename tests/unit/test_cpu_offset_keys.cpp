// The CPU kernel that offsets keys, in a batch and over a paged cache, against values written down
// here.
#include "unit/cpu_case.h"

namespace hearth::cpu_test {
namespace {

// q | k | v with one head of q, two of k and v; a head is two dims, of which the second moves.
constexpr HeadLayout keys = packed_qkv(1, 2, 2, 1).k;

// Row n with elements 10 n, 10 n + 1, ..
Array counting(int64_t B, int64_t T) {
  Array x({B, T, keys.token});
  for (int64_t i = 0; i < B * T * keys.token; ++i)
    x[i] = double(10 * (i / keys.token) + i % keys.token);
  return x;
}

// Element 3 of a row is the moved dim of the first head of k, element 5 that of the second.
using Moved = std::vector<std::pair<double, double>>;

// Checks that all other elements are those of `before`.
Moved moved_of(const Array& y, const Array& before) {
  Moved all;
  for (int64_t i = 0; i < Tensor(y).numel(); ++i) {
    if (i % keys.token == 3) all.emplace_back(y[i], y[i + 2]);
    if (i % keys.token != 3 && i % keys.token != 5) { EXPECT_EQ(y[i], before[i]) << i; }
  }
  return all;
}

template <class Body>
void on_all_tables(Body body) {
  body(reference_runner());
  for (Isa isa : usable_isas())
    for (const DType d : dtypes) body(runner_of(isa, 2, d));
}

TEST(CpuKernels, OffsetKeysOfABatch) {
  const Array x = counting(2, 4);
  // The second row begins in the middle of a sequence and ends in padding.
  const Array positions = Array::ints({2, 4}, {0, 1, 0, 1, 3, 4, -1, -1});
  on_all_tables([&](const Runner& r) {
    const auto offset = [&](bool back) {
      const Array y = r.in_place(x), kept = r.out({8, 2});
      r.k.offset_keys(
          r.s, {.y = y, .kept = kept, .positions = positions, .k = keys, .first = 1, .back = back});
      return moved_of(y.as(DType::f64), x);
    };
    EXPECT_EQ(offset(false),
              (Moved{{3, 5}, {3, 5}, {23, 25}, {23, 25}, {43, 45}, {43, 45}, {63, 65}, {73, 75}}));
    EXPECT_EQ(offset(true), (Moved{{3 + 13, 5 + 15},
                                   {0, 0},
                                   {23 + 33, 25 + 35},
                                   {0, 0},
                                   {43 + 53, 45 + 55},
                                   {0, 0},
                                   {63, 65},
                                   {73, 75}}));
  });
}

// Two sequences over three blocks: one crosses the end of a block, one begins.
TEST(CpuKernels, OffsetKeysOfACache) {
  const Array tables = Array::ints({2, 2}, {2, 0, 1, 0}), x = counting(1, 4);
  const Array sequences = Array::ints({1, 4}, {0, 0, 1, 1});
  on_all_tables([&](const Runner& r) {
    const Array cache = r.out({3, cache_block * 2});
    const auto step = [&](std::vector<int32_t> positions) {
      const Array y = r.in_place(x), at = Array::ints({1, 4}, std::move(positions));
      r.k.offset_keys(r.s, {.y = y,
                            .kept = cache,
                            .positions = at,
                            .sequences = sequences,
                            .tables = tables,
                            .k = keys,
                            .first = 1});
      return moved_of(y.as(DType::f64), x);
    };
    step({61, 62, 0, 1});
    EXPECT_EQ(step({63, 64, 2, -1}), (Moved{{13, 15}, {3, 5}, {33, 35}, {33, 35}}));
    EXPECT_EQ(step({65, 66, 3, 4}), (Moved{{13, 15}, {3, 5}, {23, 25}, {23, 25}}));
    const Array kept = cache.as(DType::f64);
    EXPECT_EQ(kept[(2 * cache_block + 63) * 2], 3);
    EXPECT_EQ(kept[0], 13);
    EXPECT_EQ(kept[(cache_block + 4) * 2 + 1], 35);
  });
}

}  // namespace
}  // namespace hearth::cpu_test
