// 8-bit floats: e4m3 (4 exponent bits, 3 mantissa bits, no infinity, at most 448) and e5m2 (5 and 2
// bits, at most 57344). In the KV cache a key or value is D codes of e4m3 with one exponent, value
// = code * 2^(exponent - 127). In training a tensor is codes with one scale, which a site keeps.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/dtype.h"
#include "core/kernel_specs.h"
#include "core/math.h"

namespace hearth::inline core {

struct e4m3 {
  uint8_t bits = 0;
  e4m3() = default;
  explicit e4m3(float);  // rounds to nearest even; clamps to 448; NaN stays NaN
  explicit operator float() const;
};

struct e5m2 {
  uint8_t bits = 0;
  e5m2() = default;
  explicit e5m2(float);  // rounds to nearest even; clamps to 57344; NaN stays NaN
  explicit operator float() const;
};

// --- training ---

// A place in a model where a tensor is rounded to fp8, and the state of its scale on the device.
struct Fp8Site {
  // Of the tensor rounded last: value = code * scale. A power of two, except for the gradient of
  // the logits.
  float scale = 0;
  float previous = 0;    // max |v| of the last finished step; 0: not known
  uint32_t largest = 0;  // max |v| of this step so far, as the bits of a float
  uint32_t unused = 0;
};
constexpr int64_t most_fp8_sites = 4096;  // per model
constexpr uint32_t fp8_measured_steps = 16;
constexpr int64_t fp8_sum_rows = 128;  // rows of each partial column sum of quantise_fp8

// Whether a scale comes from max |v| of the tensor itself: for weights (no scalars), while a run
// begins and gradients change fast, and where the last step gave no value.
HEARTH_FORMULA bool fp8_measures(const Fp8Site& s, const Scalars* scalars) {
  return !scalars || scalars->step < fp8_measured_steps || s.previous == 0;
}

// The bits of a float that is the least power of two s with largest / s within the format's range;
// twice that with `headroom`, which a value of the previous step needs. 1 for 0, inf and NaN. As a
// power of two it costs no accuracy, and scaling and its inverse are exact.
HEARTH_FORMULA uint32_t fp8_scale_bits(uint32_t largest_bits, bool is_e5m2, bool headroom) {
  if (largest_bits == 0 || largest_bits >= 0x7f800000u) return 127u << 23;
  // Carries from 1.75: the largest numbers are 1.75 * 2^8 and 1.75 * 2^15.
  const int32_t exponent =
      int32_t((largest_bits + 0x1fffffu) >> 23) + (headroom ? 1 : 0) - (is_e5m2 ? 15 : 8);
  return uint32_t(exponent < 1 ? 1 : exponent > 253 ? 253 : exponent) << 23;
}

// The gradient of the logits has a common factor, which the scale of its site contains: what is
// rounded is softmax - onehot (z-loss aside), where the -1 of nearly all rows of an early step is
// exact. Rounding -1 / targets instead would change all gradients of a step by one factor.
HEARTH_FORMULA float fp8_logits_unit(const LossSpec& s) { return s.weight != 0 ? s.weight : 1; }
HEARTH_FORMULA float fp8_logits_factor(const LossSpec& s, const Scalars& scalars) {
  return scaled_gradient(scalars, scalars.inv_targets) * fp8_logits_unit(s);
}
// Of the codes: they reach 7, which only a large z-loss exceeds, and are precise above 2^-27.
constexpr float fp8_logits_scale = 0x1p-13f;

// The format of a paged cache: the model's own dtype, or e4m3. An fp8 cache is a tensor of bytes;
// its panel for heads of width D (core/cache_layout.h) has cache_block * (D + 1) bytes: codes
// (cache_block, D), then exponents (cache_block).
enum class CacheFormat : uint8_t { plain, fp8 };
std::string_view to_string(CacheFormat);

constexpr DType cache_dtype(CacheFormat f, DType plain) {
  return f == CacheFormat::fp8 ? DType::u8 : plain;
}

// The exponent for values whose largest magnitude, as a float, has these bits: the least that
// brings it to 448 or below. As a power of two it costs no accuracy (a code has 4 significant bits
// at any scale) and decoding is exact, so decoded keys and values fit bf16. If a value is not
// finite, the exponent is 255 and all codes are 0, which decodes to NaN: inf * 0.
[[gnu::always_inline]] constexpr uint8_t cache_exponent(uint32_t largest_bits) {
  if (largest_bits >= 0x7f800000u) return 255;
  const uint32_t e = (largest_bits + 0x1fffffu) >> 23;  // carries from 1.75, as 448 = 1.75 * 2^8
  return uint8_t(e > 9 ? e - 8 : 1);
}

// Encodes to, and decodes from, the cache format. codes and numbers: D each.
uint8_t encode_cached(uint8_t* codes, const float* numbers, int64_t D);
void decode_cached(float* numbers, const uint8_t* codes, uint8_t exponent, int64_t D);

}  // namespace hearth::inline core
