#include "core/dtype.h"

#include "core/tensor.h"

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

std::string to_string(const Shape& s) {
  std::string r = "(";
  for (int i = 0; i < s.rank; ++i) r += (i ? ", " : "") + std::to_string(s[i]);
  return r + ")";
}

}  // namespace hearth::inline core
