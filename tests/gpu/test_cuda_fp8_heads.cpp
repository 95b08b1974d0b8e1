// Gradients of qkv that kernels of a GPU write in fp8 themselves: attention to the bits of a
// separate rounding, the norm and rotation of q and k near it, and both near the CPU.
#include <fmt/format.h>

#include <algorithm>

#include "cpu/backend.h"
#include "cuda_case.h"
#include "diag/lockstep.h"
#include "fp8_heads_case.h"

namespace hearth {
namespace {

using namespace cases;
using test::card;
using test::consumer_card;

#define HEARTH_NEEDS_FP8()                                        \
  HEARTH_NEEDS_A_CARD();                                          \
  if (const std::string why = card().refuses_fp8(); !why.empty()) \
  GTEST_SKIP() << "needs a card: " << why

float value(uint8_t code) { return fp8_value(DType::e5m2, code); }

// The first place where two sets of codes differ, and in how many. NaNs are equal. Empty: none.
std::string difference(const std::vector<uint8_t>& got, const std::vector<uint8_t>& want,
                       int64_t width) {
  int64_t count = 0;
  std::string first;
  for (size_t i = 0; i < want.size(); ++i) {
    if (got[i] == want[i] || (std::isnan(value(got[i])) && std::isnan(value(want[i])))) continue;
    if (!count++)
      first = fmt::format("row {} column {}: {:#x} ({}), not {:#x} ({})", int64_t(i) / width,
                          int64_t(i) % width, got[i], value(got[i]), want[i], value(want[i]));
  }
  return count ? fmt::format("{}; {} of {} differ", first, count, want.size()) : "";
}

void expect_near_sums(const std::vector<float>& got, const std::vector<float>& want,
                      int64_t width) {
  float top = 0;
  for (const float v : want) top = std::max(top, std::abs(v));
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(got[i], want[i], 1e-4 * top)
        << "sum of rows from " << int64_t(i) / width * fp8_sum_rows << ", column "
        << int64_t(i) % width;
}

void expect_transposed(const RoundResult& r, int64_t R, int64_t C) {
  const int64_t tall = round_up(R, 16);
  for (int64_t j = 0; j < C; ++j)
    for (int64_t i = 0; i < tall; ++i)
      ASSERT_EQ(r.yt[size_t(j * tall + i)], i < R ? r.y[size_t(i * C + j)] : 0)
          << "column " << j << " row " << i;
}

std::string name_of(const AttnFp8Case& c) {
  return fmt::format("{} x {}, {}:{} heads of {}, window {}{}{}{}, size {}", c.B, c.T, c.H, c.G,
                     c.D, c.window, c.documents ? ", documents" : "",
                     c.delayed ? ", delayed"
                     : c.early ? ", early"
                               : ", measured",
                     c.sums ? ", sums" : "", c.size);
}

const AttnFp8Case attention_shapes[] = {
    {.B = 1, .T = 128, .H = 1, .G = 1, .D = 64},
    {.B = 2, .T = 256, .H = 3, .G = 3, .D = 64},
    {.B = 3, .T = 1024, .H = 4, .G = 2, .D = 64},
    {.B = 1, .T = 640, .H = 6, .G = 1, .D = 64, .window = 100},
    {.B = 2, .T = 512, .H = 2, .G = 2, .D = 64, .documents = true},
    {.B = 40, .T = 256, .H = 12, .G = 12, .D = 64},  // more work items than multiprocessors
    // rounded separately
    {.B = 2, .T = 100, .H = 2, .G = 2, .D = 64},
    {.B = 1, .T = 256, .H = 2, .G = 1, .D = 128},
    {.B = 1, .T = 130, .H = 2, .G = 2, .D = 32},
};

// A shape with every kind of scale.
std::vector<AttnFp8Case> attention_cases(AttnFp8Case c) {
  std::vector<AttnFp8Case> all;
  for (const bool sums : {false, true}) {
    c.sums = sums, c.previous = 1.3f;
    c.delayed = c.early = false;
    all.push_back(c);
    c.early = true;
    all.push_back(c);
    c.early = false, c.delayed = true;
    all.push_back(c);
  }
  return all;
}

// A shape to a test: tests run side by side.
class CudaFp8Attention : public testing::TestWithParam<AttnFp8Case> {};

TEST_P(CudaFp8Attention, GivesTheCodesOfASeparateRounding) {
  HEARTH_NEEDS_FP8();
  for (const AttnFp8Case& c : attention_cases(GetParam()))
    for (Backend* b : {&card(), &card(false), &consumer_card()}) {
      SCOPED_TRACE(name_of(c) + (b == &card() ? "" : ", without wgmma"));
      const HeadsResult want = attention_bwd_on(*b, c, Rounded::separately);
      for (const Rounded how : {Rounded::by_kernel, Rounded::by_kernel_alone}) {
        SCOPED_TRACE(how == Rounded::by_kernel ? "with bf16" : "alone");
        const HeadsResult got = attention_bwd_on(*b, c, how);
        EXPECT_EQ(got.fp8.site.scale, want.fp8.site.scale);
        EXPECT_EQ(got.fp8.site.largest, want.fp8.site.largest);
        EXPECT_EQ(difference(got.fp8.y, want.fp8.y, c.width()), "") << "y";
        EXPECT_EQ(difference(got.fp8.yt, want.fp8.yt, round_up(c.B * c.T, 16)), "") << "yt";
        if (c.sums) expect_near_sums(got.fp8.sums, want.fp8.sums, c.width());
      }
    }
}

INSTANTIATE_TEST_SUITE_P(, CudaFp8Attention, testing::ValuesIn(attention_shapes));

// Gradients beyond the range of the previous step's scale, and infinite ones.
TEST(CudaFp8Heads, AttentionSaturatesAndKeepsNaNs) {
  HEARTH_NEEDS_FP8();
  for (const auto& [size, delayed] : {std::pair<float, bool>{1e6f, true}, {3e38f, false}}) {
    const AttnFp8Case c{.B = 1,
                        .T = 256,
                        .H = 2,
                        .G = 2,
                        .D = 64,
                        .delayed = delayed,
                        .early = !delayed,
                        .previous = 1e-3f,
                        .size = size,
                        .sums = false};
    SCOPED_TRACE(name_of(c));
    const HeadsResult want = attention_bwd_on(card(), c, Rounded::separately);
    const HeadsResult got = attention_bwd_on(card(), c, Rounded::by_kernel_alone);
    EXPECT_EQ(difference(got.fp8.y, want.fp8.y, c.width()), "") << "y";
    EXPECT_EQ(difference(got.fp8.yt, want.fp8.yt, c.B * c.T), "") << "yt";
    if (size < 1e30f) {
      EXPECT_EQ(got.fp8.site.largest, want.fp8.site.largest);
      EXPECT_TRUE(std::ranges::count(got.fp8.y, 0x7b) > 0);
    } else {
      EXPECT_GE(got.fp8.site.largest, 0x7f800000u);
      EXPECT_TRUE(std::ranges::any_of(got.fp8.y, [](uint8_t v) { return std::isnan(value(v)); }));
    }
  }
}

TEST(CudaFp8Heads, AttentionGivesTheSameBitsEachTime) {
  HEARTH_NEEDS_FP8();
  for (const bool delayed : {false, true}) {
    const AttnFp8Case c{.B = 24,
                        .T = 512,
                        .H = 4,
                        .G = 2,
                        .D = 64,
                        .delayed = delayed,
                        .early = !delayed,
                        .previous = 2};
    const HeadsResult first = attention_bwd_on(card(), c, Rounded::by_kernel_alone);
    expect_transposed(first.fp8, c.B * c.T, c.width());
    for (int i = 0; i < 5; ++i) {
      const HeadsResult again = attention_bwd_on(card(), c, Rounded::by_kernel_alone);
      EXPECT_EQ(difference(again.fp8.y, first.fp8.y, c.width()), "");
      EXPECT_EQ(difference(again.fp8.yt, first.fp8.yt, c.B * c.T), "");
      EXPECT_TRUE(again.fp8.sums == first.fp8.sums);
    }
  }
}

// Codes of a value that was computed twice, with errors of the last bit of bf16: nearly all are
// equal, the others are neighbours.
void expect_near_codes(const RoundResult& got, const RoundResult& want, int64_t R, int64_t C,
                       double most) {
  EXPECT_EQ(got.site.scale, want.site.scale);
  int64_t others = 0;
  for (size_t i = 0; i < want.y.size(); ++i) {
    const float a = value(got.y[i]), b = value(want.y[i]);
    ASSERT_LE(std::abs(a - b), 0.26f * std::abs(b) + 0x1p-14f)
        << "row " << int64_t(i) / C << " column " << int64_t(i) % C;
    others += a != b;
  }
  EXPECT_LE(double(others), most * double(want.y.size()));
  expect_transposed(got, R, C);
}

TEST(CudaFp8Heads, AttentionFollowsTheCpu) {
  HEARTH_NEEDS_FP8();
  const auto cpu = make_cpu_backend(2);
  for (const bool documents : {false, true}) {
    const AttnFp8Case c{.B = 2,
                        .T = 256,
                        .H = 4,
                        .G = 2,
                        .D = 64,
                        .documents = documents,
                        .delayed = true,
                        .previous = 3,
                        .sums = true};
    SCOPED_TRACE(name_of(c));
    const HeadsResult want = attention_bwd_on(*cpu, c, Rounded::by_kernel_alone);
    const HeadsResult got = attention_bwd_on(card(), c, Rounded::by_kernel_alone);
    EXPECT_EQ(got.fp8.site.scale, want.fp8.site.scale);
    expect_transposed(got.fp8, c.B * c.T, c.width());
    double error = 0, size = 0;
    for (size_t i = 0; i < want.fp8.y.size(); ++i) {
      const double a = value(got.fp8.y[i]), b = value(want.fp8.y[i]);
      error += (a - b) * (a - b), size += b * b;
    }
    EXPECT_LT(std::sqrt(error / size), 0.05);
  }
}

std::string name_of(const QkFp8Case& c) {
  return fmt::format("{} tokens, {}:{} heads of {}, {} rotate{}{}{}{}", c.tokens, c.spec.heads,
                     c.spec.kv_heads, c.spec.head_dim, c.spec.rotary,
                     c.spec.interleaved ? " in pairs" : "",
                     c.spec.norm == QkNorm::none ? "" : ", normed", c.delayed ? ", delayed" : "",
                     c.in_place ? ", in place" : "");
}

std::vector<QkFp8Case> qk_cases() {
  std::vector<QkFp8Case> all;
  const QkSpec specs[] = {
      {.heads = 12, .kv_heads = 3, .head_dim = 64, .rotary = 64, .norm = QkNorm::before_rope},
      {.heads = 4, .kv_heads = 4, .head_dim = 64, .rotary = 32, .norm = QkNorm::after_rope},
      {.heads = 6, .kv_heads = 2, .head_dim = 128, .rotary = 128},
      {.heads = 4, .kv_heads = 1, .head_dim = 64, .rotary = 64, .interleaved = true},
      {.heads = 3, .kv_heads = 1, .head_dim = 32, .rotary = 0, .norm = QkNorm::before_rope},
      {.heads = 2, .kv_heads = 1, .head_dim = 256, .rotary = 128, .norm = QkNorm::before_rope},
      {.heads = 32, .kv_heads = 32, .head_dim = 128, .rotary = 128},  // rounded separately
  };
  for (const QkSpec& spec : specs)
    for (const int64_t tokens : {1, 31, 32, 33, 500})
      for (const bool delayed : {false, true})
        all.push_back({.tokens = tokens,
                       .spec = spec,
                       .gains = tokens > 31,
                       .delayed = delayed,
                       .previous = 1.3f,
                       .in_place = tokens == 33});
  return all;
}

TEST(CudaFp8Heads, NormAndRotationGiveTheCodesOfASeparateRounding) {
  HEARTH_NEEDS_FP8();
  for (const QkFp8Case& c : qk_cases())
    for (Backend* b : {&card(), &consumer_card()}) {
      SCOPED_TRACE(name_of(c) + (b == &card() ? "" : ", small shared memory"));
      const HeadsResult want = qk_bwd_on(*b, c, Rounded::separately);
      for (const Rounded how : {Rounded::by_kernel, Rounded::by_kernel_alone}) {
        const HeadsResult got = qk_bwd_on(*b, c, how);
        expect_near_codes(got.fp8, want.fp8, c.tokens, c.spec.token(), 2e-3);
        for (size_t i = 0; i < want.dq_gain.size(); ++i) {
          const float near = 1e-4f * float(c.tokens);
          ASSERT_NEAR(got.dq_gain[i], want.dq_gain[i], near) << "gain of q " << i;
          ASSERT_NEAR(got.dk_gain[i], want.dk_gain[i], near) << "gain of k " << i;
        }
        if (how == Rounded::by_kernel) {
          for (size_t i = 0; i < want.dqkv.size(); ++i)
            ASSERT_NEAR(float(got.dqkv[i]), float(want.dqkv[i]),
                        0.01 * std::abs(float(want.dqkv[i])) + 1e-3)
                << i;
        }
      }
    }
}

TEST(CudaFp8Heads, NormAndRotationFollowTheCpu) {
  HEARTH_NEEDS_FP8();
  const auto cpu = make_cpu_backend(2);
  for (const QkFp8Case& c : qk_cases()) {
    SCOPED_TRACE(name_of(c));
    const HeadsResult want = qk_bwd_on(*cpu, c, Rounded::by_kernel_alone);
    const HeadsResult got = qk_bwd_on(card(), c, Rounded::by_kernel_alone);
    expect_near_codes(got.fp8, want.fp8, c.tokens, c.spec.token(), 0.02);
  }
}

// A step in which attention, or the norm and rotation of q and k, writes the codes.
TEST(CudaFp8Heads, EveryNodeAgreesWithTheCpu) {
  HEARTH_NEEDS_FP8();
  const auto cpu = make_cpu_backend(2);
  for (ModelCase m : fp8_models())
    for (const bool measured : {false, true}) {
      m.config.context = 128, m.config.dim = 128, m.config.hidden = 160;
      m.config.heads = 2, m.config.kv_heads = 0, m.config.head_dim = 64;
      const ProgramSpec s{.model = m.config.resolve(),
                          .dtype = DType::bf16,
                          .fp8 = Fp8Recording{.measured = measured},
                          .B = 2,
                          .T = 128,
                          .accumulates = true};
      const LockstepResult r = lockstep(s, card(), *cpu, 3);
      EXPECT_FALSE(r.first) << m.name << ": "
                            << (r.first
                                    ? fmt::format("{} of {} output {}: {}", r.first->op,
                                                  r.first->where, r.first->output, r.first->error)
                                    : "");
    }
}

}  // namespace
}  // namespace hearth
