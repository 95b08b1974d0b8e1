#include "core/fp8.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace hearth::inline core {
namespace {

float power_of(uint8_t exponent) { return std::bit_cast<float>(uint32_t(exponent) << 23); }

}  // namespace

e4m3::e4m3(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f), a = u & 0x7fffffffu;
  uint32_t code;
  if (a > 0x7f800000u) {
    code = 0x7f;
  } else if (a >= 0x3c800000u) {  // normal: 2^-6 or more
    const uint32_t r = std::min(a, 0x43e00000u) - (120u << 23);
    code = (r + 0x7ffffu + ((r >> 20) & 1)) >> 20;
  } else {  // subnormal: adding 2^14 places multiples of 2^-9 at the bottom of the mantissa
    code = std::bit_cast<uint32_t>(std::bit_cast<float>(a) + 0x1p14f) - 0x46800000u;
  }
  bits = uint8_t(code | ((u >> 24) & 0x80));
}

e4m3::operator float() const {
  const uint32_t code = bits & 0x7f;
  float magnitude = std::bit_cast<float>((code << 20) + (120u << 23));
  if (code == 0x7f) magnitude = NAN;
  if (code < 8) magnitude = float(code) * 0x1p-9f;
  return bits & 0x80 ? -magnitude : magnitude;
}

e5m2::e5m2(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f), a = u & 0x7fffffffu;
  uint32_t code;
  if (a > 0x7f800000u) {
    code = 0x7f;
  } else if (a >= 0x38800000u) {  // normal: 2^-14 or more
    const uint32_t r = std::min(a, 0x47600000u) - (112u << 23);
    code = (r + 0xfffffu + ((r >> 21) & 1)) >> 21;
  } else {  // subnormal: adding 2^7 places multiples of 2^-16 at the bottom of the mantissa
    code = std::bit_cast<uint32_t>(std::bit_cast<float>(a) + 0x1p7f) - 0x43000000u;
  }
  bits = uint8_t(code | ((u >> 24) & 0x80));
}

e5m2::operator float() const {
  const uint32_t code = bits & 0x7f;
  float magnitude = std::bit_cast<float>((code << 21) + (112u << 23));
  if (code == 0x7c) magnitude = INFINITY;
  if (code > 0x7c) magnitude = NAN;
  if (code < 4) magnitude = float(code) * 0x1p-16f;
  return bits & 0x80 ? -magnitude : magnitude;
}

std::string_view to_string(CacheFormat f) { return f == CacheFormat::fp8 ? "fp8" : "plain"; }

uint8_t encode_cached(uint8_t* codes, const float* numbers, int64_t D) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < D; ++i)
    largest = std::max(largest, std::bit_cast<uint32_t>(numbers[i]) & 0x7fffffffu);
  const uint8_t exponent = cache_exponent(largest);
  const float inverse = power_of(uint8_t(254 - exponent));
  for (int64_t i = 0; i < D; ++i) codes[i] = exponent == 255 ? 0 : e4m3(numbers[i] * inverse).bits;
  return exponent;
}

void decode_cached(float* numbers, const uint8_t* codes, uint8_t exponent, int64_t D) {
  for (int64_t i = 0; i < D; ++i) {
    e4m3 code;
    code.bits = codes[i];
    numbers[i] = float(code) * power_of(exponent);
  }
}

}  // namespace hearth::inline core
