// The vector type and its functions, compiled here for the baseline of the machine: the formulas
// are the same on every instruction set.
#define HEARTH_ISA simd_test
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "cpu/isa/simd_math.h"

namespace hearth::simd_test {
namespace {

using Function = vf (*)(vf);
using Reference = double (*)(double);

constexpr float inf = std::numeric_limits<float>::infinity();

float one(Function f, float x) { return f(broadcast(x))[0]; }

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

// Floats of every exponent and both signs, where the result is a normal float.
void expect_close(Function f, Reference reference, const char* what) {
  double worst = 0;
  float where = 0;
  for (uint64_t u = 0; u < (1ull << 32); u += 20011) {
    const float x = std::bit_cast<float>(uint32_t(u));
    const double want = reference(x);
    const float got = one(f, x);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << what << ' ' << x;
    } else if (std::isinf(float(want))) {
      ASSERT_EQ(got, float(want)) << what << ' ' << x;
    } else if (std::abs(want) < std::numeric_limits<float>::min()) {
      ASSERT_LT(std::abs(got), 1.2e-38) << what << ' ' << x;
    } else if (!(std::abs(got - want) <= worst * std::abs(want))) {
      worst = std::abs(got - want) / std::abs(want);
      where = x;
    }
  }
  EXPECT_LE(worst, 5e-7) << what << " at " << where;
}

TEST(simd, functions_are_accurate_everywhere) {
  expect_close([](vf x) { return exp(x); }, [](double x) { return std::exp(x); }, "exp");
  expect_close([](vf x) { return log(x); }, [](double x) { return std::log(x); }, "log");
  expect_close([](vf x) { return tanh(x); }, [](double x) { return std::tanh(x); }, "tanh");
  expect_close([](vf x) { return erf(x); }, [](double x) { return std::erf(x); }, "erf");
  expect_close([](vf x) { return sigmoid(x); }, sigmoid_of, "sigmoid");
}

TEST(simd, functions_at_the_ends) {
  EXPECT_EQ(one(exp, inf), inf);
  EXPECT_EQ(one(exp, -inf), 0.0f);
  EXPECT_EQ(one(log, 0.0f), -inf);
  EXPECT_EQ(one(log, inf), inf);
  EXPECT_EQ(one(tanh, -inf), -1.0f);
  EXPECT_EQ(one(erf, inf), 1.0f);
  EXPECT_EQ(one(sigmoid, -inf), 0.0f);
  for (Function f :
       {Function(exp), Function(log), Function(tanh), Function(erf), Function(sigmoid)})
    EXPECT_TRUE(std::isnan(one(f, std::nanf(""))));
}

TEST(simd, conversions_equal_the_scalar_ones) {
  for (uint64_t u = 0; u < (1ull << 32); u += 9973) {
    const float x = std::bit_cast<float>(uint32_t(u));
    ASSERT_EQ(float_to_bf16(broadcast(x))[0], bf16(x).bits) << u;
    ASSERT_EQ(float_to_f16(broadcast(x))[0], f16(x).bits) << u;
  }
  for (uint32_t u = 0; u < 65536; ++u) {
    f16 h;
    h.bits = uint16_t(u);
    if (std::isnan(float(h))) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(f16_to_float(vh{} + h.bits)[0]),
              std::bit_cast<uint32_t>(float(h)));
  }
}

TEST(simd, partial_loads_and_stores_touch_what_they_say) {
  for (int n = 0; n <= lanes; ++n) {
    float x[lanes], y[lanes + 1];
    bf16 h[lanes + 1];
    for (int i = 0; i < lanes; ++i) x[i] = float(i + 1);
    for (float& v : y) v = -1;
    for (bf16& v : h) v = bf16(-1.0f);
    const vf v = load_partial(x, n);
    for (int i = 0; i < lanes; ++i) EXPECT_EQ(v[i], i < n ? x[i] : 0.0f);
    store_partial(y, load(x), n);
    store_partial(h, load(x), n);
    for (int i = 0; i <= lanes; ++i) {
      EXPECT_EQ(y[i], i < n ? x[i] : -1.0f);
      EXPECT_EQ(float(h[i]), i < n ? x[i] : -1.0f);
    }
  }
}

TEST(simd, reductions_and_nan) {
  float x[lanes];
  float want = 0;
  for (int i = 0; i < lanes; ++i) want += x[i] = float(i) - 1.5f;
  EXPECT_EQ(sum(load(x)), want);
  EXPECT_EQ(max_lane(load(x)), float(lanes) - 2.5f);
  x[1] = std::nanf("");
  EXPECT_TRUE(std::isnan(max_lane(load(x))));
  EXPECT_TRUE(std::isnan(max(load(x), zero())[1]));
  EXPECT_TRUE(std::isnan(max(zero(), load(x))[1]));
  EXPECT_TRUE(std::isnan(min(zero(), load(x))[1]));
}

}  // namespace
}  // namespace hearth::simd_test
