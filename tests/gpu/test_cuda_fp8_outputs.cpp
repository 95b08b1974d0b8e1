// Kernels that write their result in fp8 on a GPU: cross-entropy against its formula.
#include <fmt/format.h>

#include "cuda_case.h"
#include "fp8_output_case.h"

namespace hearth {
namespace {

using namespace cases;
using test::card;

#define HEARTH_NEEDS_FP8()                                        \
  HEARTH_NEEDS_A_CARD();                                          \
  if (const std::string why = card().refuses_fp8(); !why.empty()) \
  GTEST_SKIP() << "needs a card: " << why

bool same_bits(const std::vector<bf16>& a, const std::vector<bf16>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].bits != b[i].bits) return false;
  return a.size() == b.size();
}

void expect_gradient(const LossCase& c, const std::vector<bf16>& x, const LossResult& got) {
  const Numbers want = loss_gradient(c, x);
  const std::vector<int32_t> targets = loss_targets(c);
  EXPECT_FLOAT_EQ(got.fp8.site.scale, fp8_logits_scale * (c.inv_targets * c.spec.weight));
  for (size_t i = 0; i < x.size(); ++i) {
    const int64_t row = int64_t(i) / c.wide, column = int64_t(i) % c.wide;
    if (targets[size_t(row)] < 0 || column >= c.V) {
      ASSERT_EQ(got.fp8.y[i] & 0x7f, 0) << "row " << row << " column " << column;
    }
    ASSERT_TRUE(is_nearest_gradient(want[i], got.fp8.y[i]))
        << "row " << row << " column " << column << ": " << want[i] << ", got "
        << fp8_value(DType::e5m2, got.fp8.y[i]) * fp8_logits_scale;
  }
  const int64_t tall = round_up(c.R, 16);
  for (int64_t j = 0; j < c.wide && c.transposed; ++j)
    for (int64_t r = 0; r < tall; ++r)
      ASSERT_EQ(got.fp8.yt[size_t(j * tall + r)], r < c.R ? got.fp8.y[size_t(r * c.wide + j)] : 0)
          << "transposed row " << j << " column " << r;
}

TEST(CudaFp8Outputs, TheGradientOfTheLogitsIsRoundedWithoutItsFactor) {
  HEARTH_NEEDS_FP8();
  const auto cpu = make_cpu_backend(0);
  for (const int64_t R : {1, 16, 70, 127, 128, 129, 300})
    for (const auto& [V, wide] :
         {std::pair<int64_t, int64_t>{29, 48}, {97, 128}, {256, 256}, {1000, 1008}, {5000, 5120}})
      for (const LossSpec& spec :
           {LossSpec{}, LossSpec{.softcap = 5}, LossSpec{.weight = 0.3f, .z_loss = 1e-2f}}) {
        const LossCase c{.R = R, .V = V, .wide = wide, .spec = spec};
        SCOPED_TRACE(fmt::format("{} rows, {} of {} columns, softcap {}, weight {}", R, V, wide,
                                 spec.softcap, spec.weight));
        const std::vector<bf16> x = random_bf16(R * wide, uint32_t(R * V), 2);
        const LossResult got = loss_on(card(), c, x, true), host = loss_on(*cpu, c, x, true);
        EXPECT_TRUE(same_bits(got.logits, x));
        for (int64_t r = 0; r < R; ++r) {
          ASSERT_NEAR(got.nll[size_t(r)], host.nll[size_t(r)], 1e-4) << "row " << r;
          ASSERT_NEAR(got.z[size_t(r)], host.z[size_t(r)], 1e-3) << "row " << r;
        }
        expect_gradient(c, x, got);
      }
}

// As wide as GPT-2, with more rows than run at once; always the same bits.
TEST(CudaFp8Outputs, ManyRowsOfLogitsGiveTheSameBits) {
  HEARTH_NEEDS_FP8();
  const LossCase wide{.R = 300, .V = 50257, .wide = 50304};
  const std::vector<bf16> x = random_bf16(wide.R * wide.wide, 7, 2);
  expect_gradient(wide, x, loss_on(card(), wide, x, true));
  const LossCase tall{.R = 9001, .V = 1000, .wide = 1024};
  const std::vector<bf16> y = random_bf16(tall.R * tall.wide, 8, 2);
  const LossResult first = loss_on(card(), tall, y, true);
  expect_gradient(tall, y, first);
  for (int i = 0; i < 5; ++i) {
    const LossResult again = loss_on(card(), tall, y, true);
    ASSERT_TRUE(again.fp8.y == first.fp8.y);
    ASSERT_TRUE(again.fp8.yt == first.fp8.yt);
    ASSERT_TRUE(again.nll == first.nll);
  }
}

TEST(CudaFp8Outputs, BothGradientsOfTheLogitsCanBeWritten) {
  HEARTH_NEEDS_FP8();
  LossCase c{.R = 150, .V = 1000, .wide = 1024, .spec = {.grad = true}, .transposed = false};
  const std::vector<bf16> x = random_bf16(c.R * c.wide, 3, 2);
  const LossResult both = loss_on(card(), c, x, true), plain = loss_on(card(), c, x, false);
  EXPECT_TRUE(same_bits(both.logits, plain.logits));
  EXPECT_EQ(both.fp8.yt[0], 0x55);  // not asked for
  expect_gradient(c, x, both);
}

TEST(CudaFp8Outputs, AProductTakesAnyScale) {
  HEARTH_NEEDS_FP8();
  for (const DType out : {DType::f32, DType::bf16}) {
    const Fp8ProductCase p{.M = 64, .N = 48, .K = 256, .c = out, .alpha = 0.7f};
    const Fp8Matrix a = random_fp8(p.M * p.K, 1, DType::e5m2, 0x1p-13f / 65535);
    const Fp8Matrix b = random_fp8(p.N * p.K, 2, DType::e4m3, 0x1p-9f);
    const std::vector<float> bias(48), prior(size_t(p.M * p.N));
    const ExactProduct want = exact_product(p, a, b, bias, prior);
    const std::vector<float> got = product_on(card(), p, a, b, bias, prior);
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], want.c[i], (out == DType::f32 ? 5e-4 : 8e-3) * want.size[i]) << i;
  }
}

}  // namespace
}  // namespace hearth
