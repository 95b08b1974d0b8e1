#include "core/dtype.h"

#include <cmath>

#include "core/tensor.h"
#include "sys/error.h"

namespace hearth::inline core {

std::string_view to_string(DType d) {
  switch (d) {
    case DType::f32:
      return "f32";
    case DType::f64:
      return "f64";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::i32:
      return "i32";
    case DType::u8:
      return "u8";
    case DType::int8_panels:
      return "int8 panels";
    case DType::int4_panels:
      return "int4 panels";
    case DType::fp8_panels:
      return "fp8 panels";
    case DType::e4m3:
      return "e4m3";
    case DType::e5m2:
      return "e5m2";
  }
  return "?";
}

f16::f16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  const uint16_t sign = uint16_t((u >> 16) & 0x8000);
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) {
    bits = uint16_t(sign | 0x7e00);
  } else if (a >= 0x477ff000u) {  // rounds to 65536 or more
    bits = uint16_t(sign | 0x7c00);
  } else if (a >= 0x38800000u) {  // normal
    const uint32_t r = a - 0x38000000u;
    bits = uint16_t(sign | ((r + 0xfffu + ((r >> 13) & 1)) >> 13));
  } else {  // subnormal: adding 0.5 places the wanted bits at the bottom of the mantissa
    const float s = std::bit_cast<float>(a) + 0.5f;
    bits = uint16_t(sign | uint16_t(std::bit_cast<uint32_t>(s) - 0x3f000000u));
  }
}

f16::operator float() const {
  const uint32_t sign = uint32_t(bits & 0x8000) << 16, e = (bits >> 10) & 31, m = bits & 0x3ff;
  if (e == 31) return std::bit_cast<float>(sign | 0x7f800000u | (m << 13));
  if (e == 0) return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(float(m) * 0x1p-24f));
  return std::bit_cast<float>(sign | ((e + 112) << 23) | (m << 13));
}

namespace {

template <class T>
void widen(std::span<float> out, const std::byte* in) {
  for (size_t i = 0; i < out.size(); ++i) {
    T x;
    std::memcpy(&x, in + i * sizeof x, sizeof x);
    out[i] = float(x);
  }
}

// All bits of the exponent are set in infinity and NaN, and in nothing else.
constexpr bool is_finite(bf16 x) { return (x.bits & 0x7f80) != 0x7f80; }
constexpr bool is_finite(f16 x) { return (x.bits & 0x7c00) != 0x7c00; }

// Does not stop at a value out of range, so that the loop can be vectorised.
template <class T>
bool narrow(std::byte* out, std::span<const float> in) {
  bool lost = false;
  for (size_t i = 0; i < in.size(); ++i) {
    const T x = T(in[i]);
    if constexpr (sizeof x < sizeof(float)) lost |= std::isfinite(in[i]) && !is_finite(x);
    std::memcpy(out + i * sizeof x, &x, sizeof x);
  }
  return !lost;
}

}  // namespace

void convert_to_floats(std::span<float> out, DType d, const std::byte* in) {
  switch (d) {
    case DType::f32:
      return widen<float>(out, in);
    case DType::f64:
      return widen<double>(out, in);
    case DType::bf16:
      return widen<bf16>(out, in);
    case DType::f16:
      return widen<f16>(out, in);
    default:
      fail("weights", "expected a float type, got {}", to_string(d));
  }
}

bool convert_from_floats(std::byte* out, DType d, std::span<const float> in) {
  switch (d) {
    case DType::f32:
      return narrow<float>(out, in);
    case DType::f64:
      return narrow<double>(out, in);
    case DType::bf16:
      return narrow<bf16>(out, in);
    case DType::f16:
      return narrow<f16>(out, in);
    default:
      fail("weights", "expected a float type, got {}", to_string(d));
  }
}

std::string to_string(const Shape& s) {
  std::string r = "(";
  for (int i = 0; i < s.rank; ++i) r += (i ? ", " : "") + std::to_string(s[i]);
  return r + ")";
}

}  // namespace hearth::inline core
