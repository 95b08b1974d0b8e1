// DType: the element types a tensor may have, their conversions, and dispatch from value to type.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

namespace hearth::inline core {

// The panels are bytes of weights packed in the layout of core/quantised.h. The last two are the
// 8-bit floats of core/fp8.h, which only products take, each tensor with a scale.
enum class DType : uint8_t {
  f32,
  f64,
  bf16,
  f16,
  i32,
  u8,
  int8_panels,
  int4_panels,
  fp8_panels,
  e4m3,
  e5m2
};

constexpr int64_t size_of(DType d) {
  switch (d) {
    case DType::f64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::u8:
    case DType::int8_panels:
    case DType::int4_panels:
    case DType::fp8_panels:
    case DType::e4m3:
    case DType::e5m2:
      return 1;
  }
  return 0;
}

constexpr bool is_float(DType d) {
  return d == DType::f32 || d == DType::f64 || d == DType::bf16 || d == DType::f16;
}

constexpr bool is_panels(DType d) {
  return d == DType::int8_panels || d == DType::int4_panels || d == DType::fp8_panels;
}

constexpr bool is_fp8(DType d) { return d == DType::e4m3 || d == DType::e5m2; }

std::string_view to_string(DType);  // "f32", "bf16", ...

// The upper half of a float, rounded to nearest even; NaN stays NaN.
struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float f) {
    uint32_t u = std::bit_cast<uint32_t>(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      bits = uint16_t((u >> 16) | 0x40);
    } else {
      bits = uint16_t((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
    }
  }
  explicit operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
};

// IEEE half precision, rounded to nearest even.
struct f16 {
  uint16_t bits = 0;
  f16() = default;
  explicit f16(float f);
  explicit operator float() const;
};

// Converts elements of a float dtype to floats. `in` may be unaligned, as in a mapped file.
void convert_to_floats(std::span<float> out, DType, const std::byte* in);
// Converts floats to a float dtype, rounded to nearest even; `out` may be unaligned. Returns
// whether all values were in range: a finite value beyond it becomes infinite.
bool convert_from_floats(std::byte* out, DType, std::span<const float> in);

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, double>)
    return DType::f64;
  else if constexpr (std::is_same_v<T, float>)
    return DType::f32;
  else if constexpr (std::is_same_v<T, bf16>)
    return DType::bf16;
  else if constexpr (std::is_same_v<T, f16>)
    return DType::f16;
  else if constexpr (std::is_same_v<T, int32_t>)
    return DType::i32;
  else
    return DType::u8;
}

}  // namespace hearth::inline core
