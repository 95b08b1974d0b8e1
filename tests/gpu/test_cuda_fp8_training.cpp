// fp8 training on a GPU, kernel by kernel against the CPU: rounding to the bit, products, every
// node of a step; then runs that repeat, resume, and learn like bf16.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "cuda_case.h"
#include "data/shards.h"
#include "diag/lockstep.h"
#include "fp8_case.h"
#include "run_trace.h"
#include "sys/files/files.h"
#include "train/pretrain/pretrain.h"

namespace hearth {
namespace {

using namespace cases;
using test::card;
namespace fs = std::filesystem;

#define HEARTH_NEEDS_FP8()                                        \
  HEARTH_NEEDS_A_CARD();                                          \
  if (const std::string why = card().refuses_fp8(); !why.empty()) \
  GTEST_SKIP() << "needs a card: " << why

bool is_nan(DType d, uint8_t code) { return std::isnan(fp8_value(d, code)); }

// The first place where two sets of codes differ; NaNs of any sign are equal. Empty: none.
std::string first_difference(DType d, const std::vector<uint8_t>& got,
                             const std::vector<uint8_t>& want, int64_t width) {
  for (size_t i = 0; i < want.size(); ++i)
    if (got[i] != want[i] && !(is_nan(d, got[i]) && is_nan(d, want[i])))
      return fmt::format("row {} column {}: {:#x} ({}), not {:#x} ({})", int64_t(i) / width,
                         int64_t(i) % width, got[i], fp8_value(d, got[i]), want[i],
                         fp8_value(d, want[i]));
  return {};
}

constexpr int64_t round_rows[] = {1, 7, 16, 100, 128, 129, 256, 1000};
constexpr int64_t round_widths[] = {16, 48, 112, 128, 144, 768};

TEST(CudaFp8Training, RoundsToTheBitsOfTheCpu) {
  HEARTH_NEEDS_FP8();
  const auto cpu = make_cpu_backend(2);
  for (const DType format : {DType::e4m3, DType::e5m2})
    for (const int64_t R : round_rows)
      for (const int64_t C : round_widths)
        for (const bool delayed : {false, true}) {
          SCOPED_TRACE(
              fmt::format("{} {}x{}{}", to_string(format), R, C, delayed ? " delayed" : ""));
          RoundCase c{.R = R, .C = C, .format = format, .delayed = delayed, .previous = 1.3f};
          const std::vector<bf16> x = random_bf16(R * C, uint32_t(R * C));
          const RoundResult want = round_on(*cpu, c, x), got = round_on(card(), c, x);
          EXPECT_EQ(got.site.scale, want.site.scale);
          EXPECT_EQ(got.site.largest, want.site.largest);
          EXPECT_EQ(got.site.previous, want.site.previous);
          EXPECT_EQ(first_difference(format, got.y, want.y, C), "") << "y";
          EXPECT_EQ(first_difference(format, got.yt, want.yt, round_up(R, 16)), "") << "yt";
          EXPECT_TRUE(got.sums == want.sums);
        }
}

// Every bf16 number, at several scales.
TEST(CudaFp8Training, RoundsEveryNumber) {
  HEARTH_NEEDS_FP8();
  const auto cpu = make_cpu_backend(2);
  std::vector<bf16> x(65536);
  for (size_t i = 0; i < x.size(); ++i) x[i].bits = uint16_t(i);
  for (const DType format : {DType::e4m3, DType::e5m2})
    for (const float previous : {1.0f, 1e-30f, 3e37f, 448.0f, 0.0f}) {
      SCOPED_TRACE(fmt::format("{} {}", to_string(format), previous));
      const RoundCase c{
          .R = 256, .C = 256, .format = format, .delayed = true, .previous = previous};
      const RoundResult want = round_on(*cpu, c, x), got = round_on(card(), c, x);
      EXPECT_EQ(got.site.scale, want.site.scale);
      EXPECT_EQ(got.site.largest >= 0x7f800000u, want.site.largest >= 0x7f800000u);
      EXPECT_EQ(first_difference(format, got.y, want.y, 256), "");
      EXPECT_EQ(first_difference(format, got.yt, want.yt, 256), "");
    }
}

// With an activation the values before rounding differ in the last bit of bf16 here and there.
TEST(CudaFp8Training, RoundsActivationsAndTheirSlopes) {
  HEARTH_NEEDS_FP8();
  const auto cpu = make_cpu_backend(2);
  for (const Act act : {Act::gelu_tanh, Act::gelu_erf, Act::relu2, Act::swiglu, Act::geglu,
                        Act::reglu, Act::geglu_tanh})
    for (const bool slope : {false, true})
      for (const int64_t R : {100, 256}) {
        SCOPED_TRACE(fmt::format("act {} slope {} rows {}", int(act), slope, R));
        const int64_t C = 160;
        const RoundCase c{.R = R,
                          .C = C,
                          .format = DType::e4m3,
                          .spec = {.act = act, .act_slope = slope},
                          .delayed = true,
                          .previous = 3};
        const std::vector<bf16> x = random_bf16(R * round_width(c), 3);
        const std::vector<bf16> aux = slope ? random_bf16(R * C, 5) : std::vector<bf16>{};
        const RoundResult want = round_on(*cpu, c, x, aux), got = round_on(card(), c, x, aux);
        EXPECT_EQ(got.site.scale, want.site.scale);
        int64_t others = 0;
        for (size_t i = 0; i < want.y.size(); ++i) {
          const float a = fp8_value(DType::e4m3, got.y[i]), b = fp8_value(DType::e4m3, want.y[i]);
          ASSERT_LE(std::abs(a - b), 0.126f * std::abs(b) + 0.002f) << i;
          others += a != b;
        }
        EXPECT_LT(others, R * C / 50);
        for (int64_t r = 0; r < R; ++r)
          for (int64_t j = 0; j < C; ++j)
            ASSERT_EQ(got.yt[size_t(j * round_up(R, 16) + r)], got.y[size_t(r * C + j)]);
        for (size_t i = 0; i < want.sums.size(); ++i)
          ASSERT_NEAR(got.sums[i], want.sums[i], 0.05) << i;
      }
}

TEST(CudaFp8Training, AStepHandsItsLargestValueToTheNext) {
  HEARTH_NEEDS_FP8();
  std::vector<Fp8Site> sites(300);
  for (size_t i = 0; i < sites.size(); ++i) {
    sites[i].previous = 1;
    sites[i].largest = i % 3 == 0 ? 0 : i % 3 == 1 ? 0x7f800000u : 0x40000000u + uint32_t(i);
  }
  const OnDevice<Fp8Site> there(card(), sites, {300, 16}, DType::u8);
  card().kernels().advance_fp8(card().stream(), {.sites = there});
  const std::vector<Fp8Site> got = there.read();
  for (size_t i = 0; i < sites.size(); ++i) {
    EXPECT_EQ(got[i].largest, 0u);
    EXPECT_EQ(got[i].previous, i % 3 == 2 ? std::bit_cast<float>(sites[i].largest) : 1.0f) << i;
  }
}

void expect_product(const Fp8ProductCase& p, DType format_a) {
  const Fp8Matrix a = random_fp8(p.M * p.K, 1, format_a, 0.25f);
  const Fp8Matrix b = random_fp8(p.N * p.K, 2, DType::e4m3, 0x1p-9f);
  std::vector<float> bias, prior;
  for (const bf16 v : random_bf16(p.N, 3)) bias.push_back(float(v));
  for (const bf16 v : random_bf16(p.M * p.N, 4)) prior.push_back(float(v));
  const std::vector<float> got = product_on(card(), p, a, b, bias, prior);
  const ExactProduct want = exact_product(p, a, b, bias, prior);
  // Sums inside the tensor cores keep about 14 bits of the largest term.
  const double sums = p.fast_sums ? 2e-3 : 5e-4, rounding = p.c == DType::f32 ? 1e-6 : 8e-3;
  for (size_t i = 0; i < got.size(); ++i) {
    // Without an epilogue for it, what the prior is added to is rounded before.
    const double before = p.prior ? std::abs(want.c[i] - prior[i]) : 0;
    ASSERT_NEAR(got[i], want.c[i], sums * want.size[i] + rounding * (std::abs(want.c[i]) + before))
        << "row " << int64_t(i) / p.N << " column " << int64_t(i) % p.N;
  }
}

TEST(CudaFp8Training, ProductsAreThoseOfTheCodes) {
  HEARTH_NEEDS_FP8();  // each product is tuned once, so few sizes
  for (const int64_t M : {5, 16, 33, 128, 300})
    for (const int64_t N : {16, 48, 192})
      for (const int64_t K : {16, 48, 784})
        for (const DType format : {DType::e4m3, DType::e5m2}) {
          const bool forward = format == DType::e4m3;
          SCOPED_TRACE(fmt::format("{}x{}x{} {}", M, N, K, to_string(format)));
          // forward; forward with a residual; the gradient of an input
          expect_product({.M = M, .N = N, .K = K, .bias = forward, .fast_sums = forward}, format);
          expect_product({.M = M, .N = N, .K = K, .bias = true, .prior = true, .fast_sums = true},
                         format);
          // the gradient of a weight, added to the last one
          if (M % 16 == 0) {
            expect_product({.M = M, .N = N, .K = K, .c = DType::f32}, format);
            expect_product(
                {.M = M, .N = N, .K = K, .c = DType::f32, .prior = true, .in_place = true}, format);
          }
        }
  // a scaled residual branch, which cuBLASLt has no epilogue for
  expect_product({.M = 33, .N = 64, .K = 96, .alpha = 0.5f, .bias = true, .prior = true},
                 DType::e4m3);
}

ProgramSpec fp8_program(const ModelCase& m) {
  return {.model = m.config.resolve(),
          .dtype = DType::bf16,
          .fp8 = Fp8Recording{},
          .B = 2,
          .T = 37,
          .accumulates = true};
}

TEST(CudaFp8Training, EveryNodeAgreesWithTheCpu) {
  HEARTH_NEEDS_FP8();
  const auto cpu = make_cpu_backend(2);
  for (ModelCase m : fp8_models())
    for (const bool all : {true, false}) {
      m.config.context = 64, m.config.dim = 64, m.config.hidden = 160;
      ProgramSpec s = fp8_program(m);
      s.fp8->head = s.fp8->wgrad = all;
      const LockstepResult r = lockstep(s, card(), *cpu, 3);
      EXPECT_FALSE(r.first) << m.name << ": "
                            << (r.first
                                    ? fmt::format("{} of {} output {}: {}", r.first->op,
                                                  r.first->where, r.first->output, r.first->error)
                                    : "");
    }
}

class CudaFp8Run : public testing::Test {
 protected:
  void SetUp() override {
    HEARTH_NEEDS_FP8();
    std::string name = (fs::temp_directory_path() / "hearth-cuda-fp8-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder = name;
    std::vector<int32_t> ids{1};
    for (int i = 1; i < 40000; ++i) ids.push_back((5 * ids.back() + 3 + (i % 11 == 0)) % 97);
    write_tokens(folder / "data.bin", TokenFormat::llmc, 97, ids);
  }
  void TearDown() override {
    if (!folder.empty()) fs::remove_all(folder);
  }

  PretrainSpec spec(const std::string& run, TrainDType dtype) const {
    PretrainSpec s;
    s.model = fp8_models()[1].config;  // gpt2
    s.model.vocab = 97, s.model.context = 128, s.model.dim = 128, s.model.heads = 2;
    s.model.hidden = 512, s.model.init_std = 0.02f;
    s.model = s.model.resolve();
    s.train.data = s.train.val = {(folder / "data.bin").string()};
    s.train.dtype = dtype;
    s.train.steps = 60, s.train.batch = 4, s.train.seq = "128", s.train.tokens_per_step = "1024";
    s.train.lr = 3e-3, s.train.checkpoint_every = 20, s.train.eval_every = 20;
    s.train.eval_tokens = 4096;
    s.run = folder / run;
    s.quiet = true;
    return s;
  }
  RunTrace trace(const std::string& run) const { return run_trace(folder / run, "step-00000060"); }

  fs::path folder;
};

TEST_F(CudaFp8Run, RepeatsAndResumesToTheByteWithAndWithoutGraphs) {
  pretrain(spec("whole", TrainDType::fp8), card());
  pretrain(spec("again", TrainDType::fp8), card(true, false));
  EXPECT_EQ(difference_of_runs(trace("whole"), trace("again")), "");
  PretrainSpec part = spec("parts", TrainDType::fp8);
  part.stop_after_step = 33;  // scales come from the previous step there
  EXPECT_EQ(pretrain(part, card()).reason, Ending::stopped);
  part.stop_after_step.reset(), part.resume = true;
  pretrain(part, card());
  EXPECT_EQ(difference_of_runs(trace("whole"), trace("parts")), "");
}

TEST_F(CudaFp8Run, LearnsLikeBf16) {
  const RunResult bf16 = pretrain(spec("bf16", TrainDType::bf16), card());
  const RunResult fp8 = pretrain(spec("fp8", TrainDType::fp8), card());
  ASSERT_TRUE(bf16.val_loss && fp8.val_loss);
  EXPECT_LT(*bf16.val_loss, 3.5);  // ln 97 is 4.57
  EXPECT_NEAR(*fp8.val_loss, *bf16.val_loss, 0.1);
  EXPECT_EQ(fp8.skipped, 0);
}

}  // namespace
}  // namespace hearth
