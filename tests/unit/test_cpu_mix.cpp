// The CPU kernels that mix values and find previous tokens: weighted sums in columns of rows, in
// place and with gradients that add up; tokens before others in a batch and in a paged cache.
#include "core/math.h"
#include "unit/cpu_case.h"

namespace hearth::cpu_test {
namespace {

// Values about 1: their products add up to a sum that is not a small difference of large ones.
Array about_one(Shape s, DType d) {
  Array a = Array::random(s, 0.5);
  for (int64_t i = 0; i < s.numel(); ++i) a[i] += 1;
  return a.as(d);
}

TEST(CpuKernels, Mix) {
  for (DType d : dtypes)
    for (int64_t width : {1, 3, 48, 257})
      for (int terms : {2, 3})
        for (bool packed : {false, true}) {
          const int64_t rows = 37, row = packed ? width + 5 : width, begin = packed ? 2 : 0;
          MixSpec spec{.width = width, .y = {begin, row}};
          Array x[most_mixed], w[most_mixed], prior[most_mixed];
          for (int k = 0; k < terms; ++k) {
            // The first term lies in rows like those of y, the others are whole tensors.
            spec.x[k] = k == 0 ? spec.y : Columns{0, width};
            x[k] = about_one({rows, spec.x[k].row}, d), prior[k] = random({rows, spec.x[k].row}, d);
            w[k] = random({1}, d);
          }
          const Array dy = about_one({rows, row}, d), start = Array::random({1}).as(DType::f32);
          check("mix", d, [&](const Runner& r) {
            Array over = r.in_place(x[0]), dover = r.in_place(dy);
            r.k.mix(r.s, {.y = over,
                          .x = {over, x[1].as(r.dtype), terms > 2 ? x[2].as(r.dtype) : Array()},
                          .w = {w[0].as(r.dtype), w[1].as(r.dtype), {}},
                          .spec = spec});
            Array parts = r.sums({row_parts, most_mixed});
            Array dx = r.in_place(prior[1]), dw = r.sums({1}), onto = r.in_place_acc(start);
            MixSpec adding = spec;
            adding.add[1] = true;
            const Array x0 = x[0].as(r.dtype), x1 = x[1].as(r.dtype);
            r.k.mix_bwd(r.s, {.dx = {dover, dx, {}},
                              .dw = {dw, onto, {}},
                              .parts = parts,
                              .dy = dover,
                              .x = {x0, x1, {}},
                              .w = {w[0].as(r.dtype), {}, {}},
                              .prior = {{}, dx, {}},
                              .spec = adding});
            return outputs(std::move(over), std::move(dover), std::move(dx), std::move(dw),
                           std::move(onto));
          });
        }
}

std::vector<int32_t> ints_of(const Array& a) {
  const auto* p = Tensor(a).as<int32_t>();
  return {p, p + Tensor(a).numel()};
}

// On the reference and on every instruction set, against values written down here.
template <class Body>
void on_all_tables(Body body) {
  body(reference_runner());
  for (Isa isa : usable_isas()) body(runner_of(isa, 2, DType::f32));
}

TEST(CpuKernels, PreviousTokensOfABatch) {
  const Array tokens = Array::ints({2, 4}, {5, 6, 7, 8, 9, 1, 2, 3});
  const Array positions = Array::ints({2, 4}, {0, 1, 0, 1, 3, 4, -1, -1});
  on_all_tables([&](const Runner& r) {
    Array before({2, 4}, DType::i32), row({2, 4}, DType::i32), bigram({2, 4}, DType::i32);
    r.k.previous_tokens(r.s, {.before = before,
                              .row = row,
                              .bigram = bigram,
                              .tokens = tokens,
                              .positions = positions,
                              .buckets = 50});
    // The first token of a row has none before it here, whatever its position.
    EXPECT_EQ(ints_of(before), (std::vector<int32_t>{-1, 5, -1, 7, -1, 9, -1, -1}));
    EXPECT_EQ(ints_of(row), (std::vector<int32_t>{-1, 0, -1, 2, -1, 4, -1, -1}));
    EXPECT_EQ(ints_of(bigram)[1], bigram_bucket(5, 6, 50));
    EXPECT_EQ(ints_of(bigram)[2], 49);
  });
}

// Two sequences over three blocks: one crosses the end of a block, one begins.
TEST(CpuKernels, PreviousTokensOfACache) {
  const Array tables = Array::ints({2, 2}, {2, 0, 1, 0});
  on_all_tables([&](const Runner& r) {
    Array cache({3, cache_block}, DType::i32), before({1, 4}, DType::i32);
    const auto step = [&](std::vector<int32_t> tokens, std::vector<int32_t> positions) {
      const Array t = Array::ints({1, 4}, std::move(tokens)),
                  p = Array::ints({1, 4}, std::move(positions)),
                  s = Array::ints({1, 4}, {0, 0, 1, 1});
      r.k.previous_tokens(r.s, {.before = before,
                                .cache = cache,
                                .tokens = t,
                                .positions = p,
                                .sequences = s,
                                .tables = tables});
      return ints_of(before);
    };
    EXPECT_EQ(step({3, 4, 5, 6}, {62, 63, 0, 1})[1], 3);
    EXPECT_EQ(step({7, 8, 9, 1}, {64, 65, 2, -1}), (std::vector<int32_t>{4, 7, 6, -1}));
    EXPECT_EQ(ints_of(cache)[2 * 64 + 63], 4);
    EXPECT_EQ(ints_of(cache)[0], 7);
    EXPECT_EQ(ints_of(cache)[64 + 2], 9);
  });
}

}  // namespace
}  // namespace hearth::cpu_test
