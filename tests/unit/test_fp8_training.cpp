// fp8 training on the CPU: the formats, the rounding kernel, products, a linear layer against
// double precision with the same rounding, whole models, runs that stop and resume.
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <sstream>

#include "cpu/backend.h"
#include "cpu/reference/reference.h"
#include "data/shards.h"
#include "diag/lockstep.h"
#include "fp8_case.h"
#include "optim/fp8_scales.h"
#include "run_trace.h"
#include "sys/files/files.h"
#include "train/pretrain/batch_shape.h"
#include "train/pretrain/pretrain.h"
#include "unit/message_of.h"

namespace hearth {
namespace {

using namespace cases;
namespace fs = std::filesystem;

constexpr float inf = std::numeric_limits<float>::infinity();

struct Format {
  DType dtype;
  int exponent_bits, mantissa_bits, codes;  // codes: of finite numbers that are not negative
  float largest;
};
constexpr Format formats[] = {{DType::e4m3, 4, 3, 127, 448}, {DType::e5m2, 5, 2, 124, 57344}};

double value_by_definition(const Format& f, int code) {
  const int m = code & ((1 << f.mantissa_bits) - 1), e = (code & 127) >> f.mantissa_bits;
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const double part = double(m) / (1 << f.mantissa_bits);
  const double magnitude = e ? std::ldexp(1 + part, e - bias) : std::ldexp(part, 1 - bias);
  return code & 128 ? -magnitude : magnitude;
}

// The nearest finite number by looking at all of them, the even one of two as near.
int nearest_code(const Format& f, double x) {
  int best = 0;
  for (int code = 1; code < f.codes; ++code) {
    const double off = std::abs(value_by_definition(f, code) - std::abs(x));
    const double least = std::abs(value_by_definition(f, best) - std::abs(x));
    if (off < least || (off == least && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(x) ? 128 : 0);
}

uint8_t code_of(DType d, float x) { return d == DType::e4m3 ? e4m3(x).bits : e5m2(x).bits; }

TEST(Fp8Training, EveryCodeOfE5m2IsItsValue) {
  const Format& f = formats[1];
  for (int code = 0; code < 256; ++code) {
    const float got = fp8_value(DType::e5m2, uint8_t(code));
    if ((code & 127) > 124) {
      EXPECT_TRUE(std::isnan(got)) << code;
    } else if ((code & 127) == 124) {
      EXPECT_EQ(got, code & 128 ? -inf : inf);
    } else {
      EXPECT_EQ(double(got), value_by_definition(f, code)) << code;
      EXPECT_EQ(int(e5m2(got).bits), code);
    }
  }
}

TEST(Fp8Training, RoundsToTheNearestAndSaturates) {
  for (const Format& f : formats) {
    for (int code = 0; code + 1 < f.codes; ++code) {
      const float low = float(value_by_definition(f, code));
      const float middle = float((low + value_by_definition(f, code + 1)) / 2);
      for (const float x : {low, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, inf)})
        for (const float v : {x, -x}) ASSERT_EQ(int(code_of(f.dtype, v)), nearest_code(f, v)) << v;
    }
    for (const float x : {f.largest, f.largest * 1.1f, f.largest * 100, 3e38f, inf}) {
      EXPECT_EQ(int(code_of(f.dtype, x)), f.codes - 1);
      EXPECT_EQ(int(code_of(f.dtype, -x)), (f.codes - 1) | 128);
    }
    EXPECT_TRUE(std::isnan(fp8_value(f.dtype, code_of(f.dtype, NAN))));
  }
}

TEST(Fp8Training, AScaleIsThePowerOfTwoThatFits) {
  for (const Format& f : formats)
    for (const float largest : {1.0f, 1.75f, 1.7500001f, 3.0f, 448.0f, 57344.0f, 1e-20f, 1e20f}) {
      const auto scale = [&](bool headroom) {
        return std::bit_cast<float>(
            fp8_scale_bits(std::bit_cast<uint32_t>(largest), f.dtype == DType::e5m2, headroom));
      };
      EXPECT_LE(largest / scale(false), f.largest) << largest;
      EXPECT_GT(largest / scale(false), f.largest / 2) << largest;
      EXPECT_EQ(scale(true), 2 * scale(false));
    }
  for (const float odd : {0.0f, inf, std::numeric_limits<float>::quiet_NaN()})
    EXPECT_EQ(fp8_scale_bits(std::bit_cast<uint32_t>(odd), false, true), 127u << 23);
  EXPECT_EQ(fp8_scale_bits(1, true, false), 1u << 23);  // the least float
}

// The kernel against the same steps written plainly.
void expect_rounding(Backend& b, const RoundCase& c, const std::vector<bf16>& x,
                     const std::vector<bf16>& aux) {
  const RoundResult got = round_on(b, c, x, aux);
  std::vector<float> v;
  float largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    double y = float(x[i]);
    if (c.spec.act_slope)
      y *= activate(c.spec.act, double(float(aux[i]))).dy;
    else
      y = activate(c.spec.act, y).y;
    v.push_back(float(bf16(float(y))));
    if (std::isfinite(v.back())) largest = std::max(largest, std::abs(v.back()));
  }
  const Format& f = formats[c.format == DType::e5m2];
  const float from = c.delayed ? c.previous : largest;
  float scale = 1;
  while (from / scale > f.largest) scale *= 2;
  while (from / scale <= f.largest / 2) scale /= 2;
  if (c.delayed) scale *= 2;
  EXPECT_EQ(got.site.scale, scale);
  EXPECT_EQ(std::bit_cast<float>(got.site.largest), largest);
  EXPECT_EQ(got.site.previous, c.previous);
  const int64_t wide = round_up(c.R, 16);
  for (int64_t r = 0; r < c.R; ++r)
    for (int64_t j = 0; j < c.C; ++j) {
      const int want =
          nearest_code(f, std::clamp(v[size_t(r * c.C + j)] / scale, -f.largest, f.largest));
      ASSERT_EQ(int(got.y[size_t(r * c.C + j)]), want) << r << ' ' << j;
      ASSERT_EQ(int(got.yt[size_t(j * wide + r)]), want) << r << ' ' << j;
    }
  for (int64_t j = 0; j < c.C; ++j)
    for (int64_t r = c.R; r < wide; ++r) ASSERT_EQ(got.yt[size_t(j * wide + r)], 0);
  for (int64_t tile = 0; tile * fp8_sum_rows < c.R; ++tile)
    for (int64_t j = 0; j < c.C; ++j) {
      double sum = 0;
      for (int64_t r = tile * fp8_sum_rows; r < std::min(c.R, (tile + 1) * fp8_sum_rows); ++r)
        sum += v[size_t(r * c.C + j)];
      ASSERT_NEAR(got.sums[size_t(tile * c.C + j)], sum, 1e-4) << tile << ' ' << j;
    }
}

TEST(Fp8Training, RoundsATensorAndItsTranspose) {
  for (const int threads : {1, 3}) {
    const auto cpu = make_cpu_backend(threads);
    for (const DType format : {DType::e4m3, DType::e5m2})
      for (const int64_t R : {1, 15, 16, 127, 128, 300})
        for (const RoundCase& kind : {RoundCase{}, RoundCase{.delayed = true, .previous = 0.4f},
                                      RoundCase{.spec = {.act = Act::relu2}},
                                      RoundCase{.spec = {.act = Act::relu2, .act_slope = true}}}) {
          RoundCase c = kind;
          c.R = R, c.C = 48, c.format = format;
          SCOPED_TRACE(fmt::format("{} rows, {}", R, to_string(format)));
          const auto aux = c.spec.act_slope ? random_bf16(R * c.C, 5) : std::vector<bf16>{};
          expect_rounding(*cpu, c, random_bf16(R * c.C, 3), aux);
        }
  }
}

TEST(Fp8Training, ATensorThatIsNotFiniteKeepsItsNans) {
  const auto cpu = make_cpu_backend(1);
  std::vector<bf16> x = random_bf16(64, 1);
  x[3] = bf16(inf), x[20] = bf16(-inf), x[40] = bf16(std::nanf("")), x[5] = bf16(1e-40f);
  const RoundResult r = round_on(*cpu, {.R = 4, .C = 16, .delayed = true, .previous = 2}, x);
  for (size_t i = 0; i < x.size(); ++i)
    EXPECT_EQ(std::isnan(fp8_value(DType::e4m3, r.y[i])), !std::isfinite(float(x[i]))) << i;
  EXPECT_GE(r.site.largest, 0x7f800000u);  // so that it does not become the next scale
}

TEST(Fp8Training, AStepHandsItsLargestValueToTheNext) {
  const auto cpu = make_cpu_backend(1);
  const auto site = [](float previous, float largest) {
    Fp8Site s;
    s.previous = previous, s.largest = std::bit_cast<uint32_t>(largest);
    return s;
  };
  const OnDevice<Fp8Site> sites(*cpu, {site(1, 3), site(1, 0), site(1, inf), site(0, 5)}, {4, 16},
                                DType::u8);
  cpu->kernels().advance_fp8(cpu->stream(), {.sites = sites});
  const std::vector<Fp8Site> got = sites.read();
  const float want[] = {3, 1, 1, 5};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(got[i].previous, want[i]);
    EXPECT_EQ(got[i].largest, 0u);
  }
}

TEST(Fp8Training, ProductsAreThoseOfTheCodes) {
  const auto reference = make_reference_backend();
  for (const int threads : {1, 2}) {
    const auto cpu = make_cpu_backend(threads);
    for (const Fp8ProductCase& p :
         {Fp8ProductCase{.M = 5, .N = 32, .K = 48, .bias = true},
          Fp8ProductCase{.M = 64, .N = 16, .K = 128, .alpha = 0.5f, .prior = true},
          Fp8ProductCase{.M = 33, .N = 80, .K = 160, .c = DType::f32},
          Fp8ProductCase{
              .M = 16, .N = 48, .K = 32, .c = DType::f32, .prior = true, .in_place = true}}) {
      const Fp8Matrix a = random_fp8(p.M * p.K, 1, DType::e5m2, 0.25f);
      const Fp8Matrix b = random_fp8(p.N * p.K, 2, DType::e4m3, 0x1p-20f);
      std::vector<float> bias, prior;
      for (const bf16 v : random_bf16(p.N, 3)) bias.push_back(float(v));
      for (const bf16 v : random_bf16(p.M * p.N, 4)) prior.push_back(float(v));
      const ExactProduct want = exact_product(p, a, b, bias, prior);
      for (Backend* backend : {cpu.get(), reference.get()}) {
        const std::vector<float> got = product_on(*backend, p, a, b, bias, prior);
        const double off = p.c == DType::f32 ? 1e-6 : 5e-3;
        for (size_t i = 0; i < got.size(); ++i)
          ASSERT_NEAR(got[i], want.c[i], off * want.size[i]) << i;
      }
    }
  }
}

// Rounds like a site that measures its scale.
Numbers rounded_as(DType d, const Numbers& x) {
  float largest = 0;
  for (const double v : x) largest = std::max(largest, std::abs(float(v)));
  const float scale = std::bit_cast<float>(
      fp8_scale_bits(std::bit_cast<uint32_t>(largest), d == DType::e5m2, false));
  Numbers y;
  for (const double v : x) y.push_back(double(fp8_value(d, code_of(d, float(v) / scale))) * scale);
  return y;
}

// (M, N) = a (M, K) b, where b is (K, N), or (N, K) transposed.
Numbers times(const Numbers& a, const Numbers& b, int64_t M, int64_t N, int64_t K,
              bool transposed) {
  Numbers c(size_t(M * N));
  for (int64_t i = 0; i < M; ++i)
    for (int64_t j = 0; j < N; ++j)
      for (int64_t k = 0; k < K; ++k)
        c[size_t(i * N + j)] +=
            a[size_t(i * K + k)] * b[size_t(transposed ? j * K + k : k * N + j)];
  return c;
}
Numbers turned(const Numbers& a, int64_t R, int64_t C) {
  Numbers t(a.size());
  for (int64_t r = 0; r < R; ++r)
    for (int64_t c = 0; c < C; ++c) t[size_t(c * R + r)] = a[size_t(r * C + c)];
  return t;
}

// y = x wT + bias and its gradients, against the formulas on values that are rounded here.
TEST(Fp8Training, ALinearLayerMultipliesRoundedValues) {
  const auto cpu = make_cpu_backend(2);
  const int64_t T = 21, C = 48, N = 32;
  for (const bool wgrad : {true, false}) {
    const OpCase c{.name = "linear_fp8",
                   .record =
                       [=](Recorder& r) {
                         r.t.fp8 = Fp8Recording{.wgrad = wgrad};
                         const Var x = r.x("x", {1, T, C}), w = r.weight("w", {N, C});
                         r.output(linear(r.t, x, w, {.bias = r.vector("b", N)}));
                       },
                   .small = {},
                   .large = {}};
    CaseRun run(*cpu, DType::bf16, c, {}, DType::bf16);
    run.run();
    const Numbers x = run.get("x"), w = run.get("w"), bias = run.get("b");
    const std::vector<Named> outputs = run.outputs(), gradients = run.gradients();
    Numbers want = times(rounded_as(DType::e4m3, x), rounded_as(DType::e4m3, w), T, N, C, true);
    for (size_t i = 0; i < want.size(); ++i) want[i] += bias[i % size_t(N)];
    EXPECT_LT(error_of(outputs.at(0).values, want), 4e-3);
    const Numbers dy = run.get("dy0");
    ASSERT_EQ(dy.size(), size_t(T * N));
    const Numbers rounded_dy = rounded_as(DType::e5m2, dy);
    for (const Named& g : gradients) {
      SCOPED_TRACE(g.name);
      if (g.values.size() == x.size()) {
        const Numbers dx = times(rounded_dy, rounded_as(DType::e4m3, w), T, C, N, false);
        EXPECT_LT(error_of(g.values, dx), 4e-3);
      } else if (g.values.size() == w.size()) {
        const Numbers dw = times(turned(wgrad ? rounded_dy : dy, T, N),
                                 wgrad ? rounded_as(DType::e4m3, x) : x, N, C, T, false);
        EXPECT_LT(error_of(g.values, dw), 1e-5);
      } else {
        Numbers db(static_cast<size_t>(N));
        for (size_t i = 0; i < dy.size(); ++i) db[i % size_t(N)] += dy[i];
        EXPECT_LT(error_of(g.values, db), 1e-5);
      }
    }
  }
}

ProgramSpec fp8_program(const ModelCase& m) {
  return {.model = m.config.resolve(),
          .dtype = DType::bf16,
          .fp8 = Fp8Recording{},
          .B = 2,
          .T = 11,
          .accumulates = true};
}

TEST(Fp8Training, EveryNodeAgreesWithTheReference) {
  const auto cpu = make_cpu_backend(2), reference = make_reference_backend();
  ASSERT_EQ(fp8_models().size(), 5u);
  for (const ModelCase& m : fp8_models())
    for (const Recompute recompute : {Recompute::none, Recompute::block}) {
      ProgramSpec s = fp8_program(m);
      s.recompute = recompute;
      const LockstepResult r = lockstep(s, *cpu, *reference, 3);
      EXPECT_FALSE(r.first) << m.name << ": "
                            << (r.first ? r.first->op + " " + r.first->where : "");
      EXPECT_GT(r.nodes, 50);
    }
}

// The gradients of one step in fp8 and in bf16 point the same way.
TEST(Fp8Training, GradientsAreNearThoseOfBf16) {
  const auto cpu = make_cpu_backend(2);
  const auto gradients = [&](const ProgramSpec& s) {
    ParamStore params(*cpu, decoder_params(s.model), s.dtype);
    params.initialise(21);
    Memory memory(*cpu, &params);
    Programs programs(s, memory);
    const Batch batch = random_batch(s, 4);
    Scalars scalars;
    scalars.inv_targets = 1 / float(batch.count);
    programs.micro(batch, scalars, true);
    programs.micro(batch, scalars, false);  // the second adds as much again
    std::vector<float> all;
    for (const ParamSpec& p : params.specs())
      for (const float g : params.values(Part::grad, p.name)) all.push_back(g);
    return all;
  };
  for (const ModelCase& m : fp8_models()) {
    ProgramSpec s = fp8_program(m);
    const std::vector<float> fp8 = gradients(s);
    s.fp8.reset();
    const std::vector<float> plain = gradients(s);
    double dot = 0, a = 0, b = 0;
    for (size_t i = 0; i < fp8.size(); ++i) {
      dot += double(fp8[i]) * plain[i];
      a += double(fp8[i]) * fp8[i], b += double(plain[i]) * plain[i];
    }
    EXPECT_GT(dot / std::sqrt(a * b), 0.97) << m.name;
    EXPECT_LT(dot / std::sqrt(a * b), 0.999999) << m.name << ": not rounded to fp8";
    // At the start the gradients of all target logits are nearly one number. Were it rounded, as -1
    // over the targets would be, all gradients would have a common factor of up to an eighth. The
    // rest is the probability of the target, 1 / 29 here, by which that number differs from -1.
    EXPECT_NEAR(dot / b, 1, 0.04) << m.name;
  }
}

TEST(Fp8Training, RecomputationChangesNoBit) {
  const auto cpu = make_cpu_backend(2);
  const auto weights = [&](Recompute recompute, const ModelCase& m) {
    ProgramSpec s = fp8_program(m);
    s.recompute = recompute;
    ParamStore params(*cpu, decoder_params(s.model), s.dtype);
    params.initialise(21);
    Memory memory(*cpu, &params);
    Programs programs(s, memory);
    programs.update().set_state({});
    std::vector<float> all;
    for (uint32_t step = fp8_measured_steps - 2; step < fp8_measured_steps + 2; ++step) {
      const Batch batch = random_batch(s, step);
      Scalars scalars;
      scalars.lr = 1e-2f, scalars.inv_targets = 1 / float(batch.count), scalars.step = step;
      programs.micro(batch, scalars, true);
      programs.update().run(scalars);
    }
    for (const ParamSpec& p : params.specs())
      for (const float w : params.values(Part::weight, p.name)) all.push_back(w);
    return all;
  };
  for (const ModelCase& m : fp8_models()) {
    const std::vector<float> kept = weights(Recompute::none, m);
    EXPECT_EQ(weights(Recompute::light, m), kept) << m.name;
    EXPECT_EQ(weights(Recompute::block, m), kept) << m.name;
  }
}

TEST(Fp8Training, MemoryIsPlanned) {
  const auto backend = make_reference_backend();
  for (const ModelCase& m : fp8_models()) {
    const ProgramSpec s = fp8_program(m);
    const MemoryNeed need = memory_need(s);
    ParamStore params(*backend, decoder_params(s.model), s.dtype);
    Memory memory(*backend, &params);
    Programs programs(s, memory);
    EXPECT_EQ(memory.arena_bytes(), need.activations) << m.name;
    EXPECT_EQ(memory.state.bytes("fp8") - memory.state.bytes("fp8.sites"), need.fp8_weights);
    EXPECT_GT(need.fp8_weights, 0);
  }
}

TEST(Fp8Training, OddWidthsAreRefused) {
  ProgramSpec s = fp8_program(fp8_models()[0]);
  s.model.hidden = 40;
  EXPECT_NE(message_of([&] { memory_need(s); }).find("multiples of 16"), std::string::npos);
}

}  // namespace
}  // namespace hearth
