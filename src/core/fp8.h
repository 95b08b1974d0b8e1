// e4m3: a float of 8 bits (4 of exponent, 3 of mantissa, no infinity, the largest 448), and how a
// KV cache is made of it: a key or a value is D codes and one exponent of its own,
// number = code * 2^(exponent - 127).
#pragma once

#include <cstdint>
#include <string_view>

#include "core/dtype.h"

namespace hearth::inline core {

struct e4m3 {
  uint8_t bits = 0;
  e4m3() = default;
  explicit e4m3(float);  // to the nearest even; beyond 448 is 448; NaN stays NaN
  explicit operator float() const;
};

// What a paged cache holds: numbers as the model computes them, or e4m3. An fp8 cache is a tensor
// of bytes; a panel of it for heads of width D (core/cache_layout.h) is cache_block * (D + 1) of
// them: codes (cache_block, D), then exponents (cache_block).
enum class CacheFormat : uint8_t { plain, fp8 };
std::string_view to_string(CacheFormat);

constexpr DType cache_dtype(CacheFormat f, DType plain) {
  return f == CacheFormat::fp8 ? DType::u8 : plain;
}

// The exponent of numbers of which the largest magnitude has these bits as a float: the least that
// brings it to 448 or below. Being a power of two it costs no accuracy (a code has 4 significant
// bits whatever the scale) and undoing it is exact, so keys and values fit bf16 as they are.
// Numbers that are not all finite have exponent 255 and codes 0, which read as NaN: inf * 0.
[[gnu::always_inline]] constexpr uint8_t cache_exponent(uint32_t largest_bits) {
  if (largest_bits >= 0x7f800000u) return 255;
  const uint32_t e = (largest_bits + 0x1fffffu) >> 23;  // carries from 1.75, as 448 = 1.75 * 2^8
  return uint8_t(e > 9 ? e - 8 : 1);
}

// As a cache keeps them, and back. codes and numbers: D each.
uint8_t encode_cached(uint8_t* codes, const float* numbers, int64_t D);
void decode_cached(float* numbers, const uint8_t* codes, uint8_t exponent, int64_t D);

}  // namespace hearth::inline core
