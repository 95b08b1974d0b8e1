// The initial values of parameters: the formulas that the host and the devices share. A draw is
// keyed by (seed, name, element), so that any part of a parameter can be drawn anywhere.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/math.h"

namespace hearth::inline core {

// How a parameter is initialised.
struct Init {
  enum class Kind : uint8_t { constant, normal, uniform } kind = Kind::constant;
  float scale = 0;  // the constant, the standard deviation, or the half width

  static Init zeros() { return {}; }
  static Init ones() { return {Kind::constant, 1}; }
  static Init constant(float x) { return {Kind::constant, x}; }
  static Init normal(float deviation) { return {Kind::normal, deviation}; }
  static Init uniform(float half_width) { return {Kind::uniform, half_width}; }
  bool operator==(const Init&) const = default;
};

// Of all draws of one parameter.
struct DrawKey {
  uint32_t name_lo = 0, name_hi = 0, seed_lo = 0, seed_hi = 0;
};
DrawKey draw_key(uint64_t seed, std::string_view name);

// The initial values of elements [first, first + out.size()) of the parameter `name`; first is a
// multiple of 4. This is the definition; Kernels::draw computes the same bits faster.
void draw(std::span<float> out, const Init&, uint64_t seed, std::string_view name,
          int64_t first = 0);
// Two adjacent normal draws from their two numbers of unit_draw(): Box-Muller in double.
void draw_normal_pair(float* out, double deviation, float u, float v);

constexpr uint32_t draw_salt = 0x1417u;  // separates these draws from other uses of a seed

// The random words of elements 4 block to 4 block + 3.
HEARTH_FORMULA Words draw_words(const DrawKey& k, uint64_t block) {
  return philox({{uint32_t(block), k.name_lo, k.name_hi, draw_salt}}, k.seed_lo, k.seed_hi);
}

HEARTH_FORMULA float unit_draw(uint32_t w) {  // in (0, 1]
  return (float(w >> 8) + 0.5f) * 0x1p-24f;
}

HEARTH_FORMULA float uniform_draw(float half_width, uint32_t w) {
  return half_width * (2 * unit_draw(w) - 1);
}

// Two adjacent normal draws before they are rounded to float, by polynomials that a compiler can
// vectorise and that run on any device. draw_normal_pair() uses the C library's log, sin and cos
// instead. The two results lie within `doubt` of each other, so a draw for which is_sure() holds
// has the same bits. About one draw in 600,000 is not sure; draw_normal_pair() has to decide it.
struct NormalPair {
  double first, second;
  double doubt;
};

namespace draw_parts {

constexpr double ln2 = 0.693147180559945309417;
constexpr double half_pi = 1.57079632679489661923;

// log u for a float u in (0, 1], with a relative error below 2^-50.
HEARTH_FORMULA double log_of_unit(double u) {
  constexpr int64_t root_half = 0x3FE6A09E667F3BCD;
  const int64_t bits = __builtin_bit_cast(int64_t, u);
  const int64_t e = (bits - root_half) >> 52;  // u = m 2^e with m in [sqrt(1/2), sqrt(2))
  const double m = __builtin_bit_cast(double, bits - e * (int64_t(1) << 52));
  constexpr double shift = 0x1.8p52;  // the low bits of shift + e are those of the integer e
  const double exponent =
      __builtin_bit_cast(double, __builtin_bit_cast(int64_t, shift) + e) - shift;
  const double f = m - 1, s = f / (2 + f), z = s * s;
  double p = 2.0 / 21;
  p = p * z + 2.0 / 19;
  p = p * z + 2.0 / 17;
  p = p * z + 2.0 / 15;
  p = p * z + 2.0 / 13;
  p = p * z + 2.0 / 11;
  p = p * z + 2.0 / 9;
  p = p * z + 2.0 / 7;
  p = p * z + 2.0 / 5;
  p = p * z + 2.0 / 3;
  return exponent * ln2 + (s * z * p + 2 * s);
}

struct SinCos {
  double sin, cos;
};

// Of the angle r within [-pi/4, pi/4], with an error below 2^-52.
HEARTH_FORMULA SinCos sin_cos(double r) {
  const double z = r * r;
  double s = -1.0 / 1307674368000;
  s = s * z + 1.0 / 6227020800;
  s = s * z - 1.0 / 39916800;
  s = s * z + 1.0 / 362880;
  s = s * z - 1.0 / 5040;
  s = s * z + 1.0 / 120;
  s = s * z - 1.0 / 6;
  double c = 1.0 / 20922789888000;
  c = c * z - 1.0 / 87178291200;
  c = c * z + 1.0 / 479001600;
  c = c * z - 1.0 / 3628800;
  c = c * z + 1.0 / 40320;
  c = c * z - 1.0 / 720;
  c = c * z + 1.0 / 24;
  c = c * z - 0.5;
  return {r + r * z * s, 1 + z * c};
}

}  // namespace draw_parts

HEARTH_FORMULA NormalPair normal_pair(double deviation, float u, float v) {
  using namespace draw_parts;
  const double rho = deviation * std::sqrt(-2 * log_of_unit(double(u)));
  const auto quarter = int32_t(4 * v + 0.5f);  // the nearest one; v has 24 bits, so this is exact
  const SinCos a = sin_cos((double(v) - 0.25 * quarter) * (4 * half_pi));
  const double x = quarter % 2 ? a.sin : a.cos, y = quarter % 2 ? a.cos : a.sin;
  const bool left = quarter == 1 || quarter == 2, below = quarter == 2 || quarter == 3;
  // The C library's result is within 2^-49.5 rho of the true value: the angle 2 pi v is rounded by
  // up to 2^-50.5, the rest by a few 2^-53. The one here is within 2^-49 rho.
  return {rho * (left ? -x : x), rho * (below ? -y : y), rho * 0x1p-47};
}

// Whether all values within `doubt` of x round to one float. False for a doubt of 0, because the
// sign of a zero could differ.
HEARTH_FORMULA bool is_sure(double x, double doubt) {
  return doubt > 0 && float(x - doubt) == float(x + doubt);
}

}  // namespace hearth::inline core
