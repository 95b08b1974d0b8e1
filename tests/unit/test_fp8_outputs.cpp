// Kernels that write their result in fp8 themselves give the codes of a separate rounding; the
// gradient of the logits is rounded without the factor that all of it shares.
#include <gtest/gtest.h>

#include "cpu/backend.h"
#include "cpu/reference/reference.h"
#include "fp8_heads_case.h"
#include "train/pretrain/programs.h"

namespace hearth {
namespace {

using namespace cases;

void expect_same(const RoundResult& got, const RoundResult& want) {
  EXPECT_EQ(got.site.scale, want.site.scale);
  EXPECT_EQ(got.site.largest, want.site.largest);
  EXPECT_TRUE(got.y == want.y);
  EXPECT_TRUE(got.yt == want.yt);
  EXPECT_TRUE(got.sums == want.sums);
}

TEST(Fp8Outputs, ANormGivesTheCodesOfASeparateRounding) {
  const auto cpu = make_cpu_backend(2), reference = make_reference_backend();
  for (Backend* b : {cpu.get(), reference.get()})
    for (const Norm kind : {Norm::rms, Norm::layer})
      for (const int64_t R : {1, 17, 130})
        for (const bool delayed : {false, true}) {
          const NormCase c{.out = {.R = R, .C = 48, .delayed = delayed, .previous = 2},
                           .norm = {.kind = kind},
                           .bias = kind == Norm::layer,
                           .residual = delayed};
          const NormResult want = norm_on(*b, c, Rounded::separately);
          for (const Rounded how : {Rounded::by_kernel, Rounded::by_kernel_alone}) {
            const NormResult got = norm_on(*b, c, how);
            expect_same(got.fp8, want.fp8);
            EXPECT_TRUE(got.stat == want.stat);
          }
          const NormResult back = norm_bwd_on(*b, c, Rounded::separately);
          for (const Rounded how : {Rounded::by_kernel, Rounded::by_kernel_alone}) {
            const NormResult got = norm_bwd_on(*b, c, how);
            expect_same(got.fp8, back.fp8);
            EXPECT_TRUE(got.dgain == back.dgain);
          }
        }
}

TEST(Fp8Outputs, TheGradientOfQkvHasTheCodesOfASeparateRounding) {
  const auto cpu = make_cpu_backend(2), reference = make_reference_backend();
  for (Backend* b : {cpu.get(), reference.get()})
    for (const bool delayed : {false, true}) {
      const AttnFp8Case a{.B = 2, .T = 33, .H = 4, .G = 2, .delayed = delayed, .previous = 2};
      const QkFp8Case q{.tokens = 37,
                        .spec = {.heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 16,
                                 .rotary = 8,
                                 .norm = delayed ? QkNorm::before_rope : QkNorm::none},
                        .gains = true,
                        .delayed = delayed,
                        .previous = 2,
                        .sums = true};
      const HeadsResult attended = attention_bwd_on(*b, a, Rounded::separately);
      const HeadsResult turned = qk_bwd_on(*b, q, Rounded::separately);
      for (const Rounded how : {Rounded::by_kernel, Rounded::by_kernel_alone}) {
        expect_same(attention_bwd_on(*b, a, how).fp8, attended.fp8);
        const HeadsResult got = qk_bwd_on(*b, q, how);
        expect_same(got.fp8, turned.fp8);
        EXPECT_TRUE(got.dq_gain == turned.dq_gain);
      }
    }
}

TEST(Fp8Outputs, TheGradientOfTheLogitsIsRoundedWithoutItsFactor) {
  const auto cpu = make_cpu_backend(2), reference = make_reference_backend();
  for (Backend* b : {cpu.get(), reference.get()})
    for (const int64_t R : {1, 16, 70, 129})
      for (const LossSpec spec :
           {LossSpec{}, LossSpec{.softcap = 5}, LossSpec{.weight = 0.3f, .z_loss = 1e-2f}}) {
        const LossCase c{.R = R, .V = 29, .wide = 48, .spec = spec};
        const std::vector<bf16> x = random_bf16(R * c.wide, uint32_t(R), 2);
        const Numbers want = loss_gradient(c, x);
        const LossResult got = loss_on(*b, c, x, true), plain = loss_on(*b, c, x, false);
        EXPECT_TRUE(got.nll == plain.nll);
        EXPECT_TRUE(got.z == plain.z);
        EXPECT_EQ(got.fp8.site.scale, fp8_logits_scale * (c.inv_targets * spec.weight));
        EXPECT_EQ(got.fp8.site.largest, 0u);
        for (size_t i = 0; i < x.size(); ++i) {
          ASSERT_EQ(got.logits[i].bits, x[i].bits);  // only the plain gradient overwrites them
          ASSERT_TRUE(is_nearest_gradient(want[i], got.fp8.y[i])) << i << ' ' << want[i];
        }
        const int64_t tall = round_up(R, 16);
        for (int64_t j = 0; j < c.wide; ++j)
          for (int64_t r = 0; r < tall; ++r)
            ASSERT_EQ(got.fp8.yt[size_t(j * tall + r)],
                      r < R ? got.fp8.y[size_t(r * c.wide + j)] : 0);
      }
}

TEST(Fp8Outputs, BothGradientsOfTheLogitsCanBeWritten) {
  const auto cpu = make_cpu_backend(1);
  LossCase c{.R = 20, .V = 29, .wide = 32, .spec = {.grad = true}, .transposed = false};
  const std::vector<bf16> x = random_bf16(c.R * c.wide, 3, 2);
  const LossResult both = loss_on(*cpu, c, x, true), plain = loss_on(*cpu, c, x, false);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(both.logits[i].bits, plain.logits[i].bits);
  EXPECT_EQ(both.fp8.yt[0], 0x55);  // not asked for
  c.spec.grad = false;
  EXPECT_TRUE(loss_on(*cpu, c, x, true).fp8.y == both.fp8.y);
}

// Early in training the target's element is nearly -1, and has to be -1 in fp8.
TEST(Fp8Outputs, TheTargetsElementIsExactAtTheStart) {
  const auto cpu = make_cpu_backend(1);
  const LossCase c{.R = 40, .V = 1000, .wide = 1008, .inv_targets = 1.0f / 37};
  const LossResult r = loss_on(*cpu, c, random_bf16(c.R * c.wide, 3, 0.1f), true);
  const std::vector<int32_t> targets = loss_targets(c);
  for (int64_t row = 0; row < c.R; ++row)
    if (const int64_t t = targets[size_t(row)]; t >= 0) {
      EXPECT_EQ(fp8_value(DType::e5m2, r.fp8.y[size_t(row * c.wide + t)]) * fp8_logits_scale, -1);
    }
}

TEST(Fp8Outputs, AProductTakesAnyScale) {
  const auto reference = make_reference_backend(), cpu = make_cpu_backend(2);
  const Fp8ProductCase p{.M = 16, .N = 48, .K = 32, .c = DType::f32, .alpha = 0.7f, .prior = true};
  const Fp8Matrix a = random_fp8(p.M * p.K, 1, DType::e5m2, 0x1p-13f / 65535);
  const Fp8Matrix b = random_fp8(p.N * p.K, 2, DType::e4m3, 0x1p-9f);
  const std::vector<float> bias(48), prior(size_t(p.M * p.N), 1e-9f);
  const ExactProduct want = exact_product(p, a, b, bias, prior);
  for (Backend* backend : {cpu.get(), reference.get()}) {
    const std::vector<float> got = product_on(*backend, p, a, b, bias, prior);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want.c[i], 1e-6 * want.size[i]);
  }
}

// What only products in fp8 read is not written in bf16.
TEST(Fp8Outputs, NormsInTheStepLeaveTheBf16CopyOut) {
  const auto cpu = make_cpu_backend(1);
  for (const ModelCase& m : fp8_models())
    for (const bool wgrad : {true, false}) {
      const ProgramSpec s{.model = m.config.resolve(),
                          .dtype = DType::bf16,
                          .fp8 = Fp8Recording{.wgrad = wgrad},
                          .B = 2,
                          .T = 11};
      ParamStore params(*cpu, decoder_params(s.model), s.dtype);
      Memory memory(*cpu, &params);
      Programs programs(s, memory);
      int fused = 0, alone = 0, separate = 0, losses = 0, qkv = 0;
      for (const Node& n : programs.first_program().tape().nodes) {
        const std::string name = n.op->name;
        const bool norm = name == "layer_norm" || name == "rms_norm";
        const bool copied = norm && n.out[n.out.size() - 3];
        fused += copied, alone += copied && !n.out[0];
        separate += name == "quantise_fp8";
        const bool heads = name == "attention_bwd" || name == "qk_norm_rope_bwd";
        qkv += heads && n.out[n.out.size() - 3] && !n.out[0];
        losses += name == "cross_entropy" && !n.out[2];
      }
      EXPECT_GT(fused, 0) << m.name;
      EXPECT_GT(separate, 0) << m.name;
      EXPECT_EQ(alone > 0, wgrad) << m.name;
      EXPECT_EQ(losses > 0, wgrad) << m.name;  // without a gradient over the logits
      // Each layer's gradient of qkv, unless something else reads it.
      if (m.name == "gpt2" || m.name == "llama") {
        EXPECT_EQ(qkv, wgrad ? s.model.layers : 0) << m.name;
      }
    }
}

}  // namespace
}  // namespace hearth
