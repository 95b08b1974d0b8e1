// Kernels that write their result in fp8 on a GPU: norms against a separate rounding to the bit,
// cross-entropy against its formula.
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

// The first place where two sets of codes differ. Empty: none.
std::string first_difference(const std::vector<uint8_t>& got, const std::vector<uint8_t>& want,
                             int64_t width) {
  for (size_t i = 0; i < want.size(); ++i)
    if (got[i] != want[i])
      return fmt::format("row {} column {}: {:#x}, not {:#x}", int64_t(i) / width,
                         int64_t(i) % width, got[i], want[i]);
  return {};
}

void expect_same(const NormCase& c, const RoundResult& got, const RoundResult& want) {
  EXPECT_EQ(got.site.scale, want.site.scale);
  EXPECT_EQ(got.site.largest, want.site.largest);
  EXPECT_EQ(first_difference(got.y, want.y, c.out.C), "") << "y";
  EXPECT_EQ(first_difference(got.yt, want.yt, round_up(c.out.R, 16)), "") << "yt";
}

bool same_bits(const std::vector<bf16>& a, const std::vector<bf16>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].bits != b[i].bits) return false;
  return a.size() == b.size();
}

// All kinds of norms at one size.
std::vector<NormCase> norm_cases(int64_t R, int64_t C, DType format) {
  std::vector<NormCase> all;
  for (const Norm kind : {Norm::rms, Norm::layer})
    for (const bool delayed : {false, true})
      for (const int extras : {0, 1, 2}) {  // 2: in place
        NormCase c{.out = {.R = R, .C = C, .format = format, .delayed = delayed, .previous = 2.5f},
                   .norm = {.kind = kind}};
        c.gain = extras > 0 || kind == Norm::layer;
        c.bias = kind == Norm::layer;
        c.residual = extras > 0, c.in_place = extras == 2;
        all.push_back(c);
      }
  return all;
}

std::string name_of(const NormCase& c) {
  return fmt::format("{} {}x{}{}{}{}", c.norm.kind == Norm::rms ? "rms" : "layer", c.out.R, c.out.C,
                     c.out.delayed ? " delayed" : "", c.residual ? " residual" : "",
                     c.in_place ? " in place" : "");
}

constexpr int64_t norm_rows[] = {1, 15, 16, 32, 33, 100, 1000};

// A width to a test: tests run side by side.
class CudaFp8Norms : public testing::TestWithParam<int> {};

TEST_P(CudaFp8Norms, GiveTheCodesOfASeparateRounding) {
  HEARTH_NEEDS_FP8();
  for (const int64_t R : norm_rows)
    for (const NormCase& c : norm_cases(R, GetParam(), DType::e4m3)) {
      SCOPED_TRACE(name_of(c));
      const NormResult want = norm_on(card(), c, Rounded::separately);
      for (const Rounded how : {Rounded::by_kernel, Rounded::by_kernel_alone}) {
        const NormResult got = norm_on(card(), c, how);
        expect_same(c, got.fp8, want.fp8);
        EXPECT_TRUE(got.stat == want.stat);
        EXPECT_TRUE(same_bits(got.sum, want.sum));
        if (how == Rounded::by_kernel) { EXPECT_TRUE(same_bits(got.y, want.y)); }
      }
    }
}

INSTANTIATE_TEST_SUITE_P(, CudaFp8Norms,
                         testing::Values(16, 48, 256, 272, 768, 1024, 1600, 2048, 4112));

// Wider rows are summed by a block in the plain kernel and by a warp here, so the last bit of the
// statistics may differ.
TEST(CudaFp8Outputs, WideNormsAreNearTheCodesOfASeparateRounding) {
  HEARTH_NEEDS_FP8();
  for (const int64_t C : {2064, 3072, 4096})
    for (const NormCase& c : norm_cases(77, C, DType::e4m3)) {
      SCOPED_TRACE(name_of(c));
      const NormResult want = norm_on(card(), c, Rounded::separately);
      const NormResult got = norm_on(card(), c, Rounded::by_kernel_alone);
      EXPECT_EQ(got.fp8.site.scale, want.fp8.site.scale);
      int64_t others = 0;
      for (size_t i = 0; i < want.fp8.y.size(); ++i) {
        const float a = fp8_value(DType::e4m3, got.fp8.y[i]),
                    b = fp8_value(DType::e4m3, want.fp8.y[i]);
        ASSERT_LE(std::abs(a - b), 0.126f * std::abs(b) + 0.002f) << i;
        others += a != b;
      }
      EXPECT_LT(others, c.out.R * C / 200);
      for (int64_t r = 0; r < c.out.R; ++r)
        for (int64_t j = 0; j < C; ++j)
          ASSERT_EQ(got.fp8.yt[size_t(j * round_up(c.out.R, 16) + r)],
                    got.fp8.y[size_t(r * C + j)]);
    }
}

TEST(CudaFp8Outputs, TheGradientOfANormGivesTheCodesOfASeparateRounding) {
  HEARTH_NEEDS_FP8();
  // 3000 rows are rounded separately; 65531 are more groups of 128 than run at once.
  for (const int64_t R : {1, 15, 16, 33, 127, 128, 129, 1000, 3000, 65531})
    for (const int64_t C : {16, 48, 256, 272, 768, 784, 1600})
      for (const NormCase& c : norm_cases(R, C, DType::e5m2)) {
        if (R > 1000 && C != 48) continue;
        SCOPED_TRACE(name_of(c));
        const NormResult want = norm_bwd_on(card(), c, Rounded::separately);
        for (const Rounded how : {Rounded::by_kernel, Rounded::by_kernel_alone}) {
          const NormResult got = norm_bwd_on(card(), c, how);
          expect_same(c, got.fp8, want.fp8);
          if (how == Rounded::by_kernel) { EXPECT_TRUE(same_bits(got.y, want.y)); }
          for (size_t i = 0; i < want.fp8.sums.size(); ++i)
            ASSERT_NEAR(got.fp8.sums[i], want.fp8.sums[i], 1e-3) << "sum " << i;
          for (size_t i = 0; i < want.dgain.size(); ++i) {
            const float near = 1e-4f * std::sqrt(float(R));
            ASSERT_NEAR(got.dgain[i], want.dgain[i], near + 1e-4f * std::abs(want.dgain[i])) << i;
            ASSERT_NEAR(got.dbias[i], want.dbias[i], near + 1e-4f * std::abs(want.dbias[i])) << i;
          }
        }
      }
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
  const auto cpu = make_cpu_backend(2);
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
