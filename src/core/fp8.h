// e4m3: an 8-bit float (4 exponent bits, 3 mantissa bits, no infinity, at most 448), and its use in
// the KV cache: a key or value is D codes with one exponent, value = code * 2^(exponent - 127).
#pragma once

#include <cstdint>
#include <string_view>

#include "core/dtype.h"

namespace hearth::inline core {

struct e4m3 {
  uint8_t bits = 0;
  e4m3() = default;
  explicit e4m3(float);  // rounds to nearest even; clamps to 448; NaN stays NaN
  explicit operator float() const;
};

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
