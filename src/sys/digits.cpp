#include "sys/digits.h"

#include <array>
#include <cstdint>

namespace hearth::inline sys {
namespace {

constexpr std::array<int8_t, 256> base64_values() {
  std::array<int8_t, 256> values{};
  values.fill(-1);
  const std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < digits.size(); ++i) values[uint8_t(digits[i])] = int8_t(i);
  return values;
}

}  // namespace

bool decode_base64(std::span<std::byte> out, std::string_view text) {
  static constexpr auto values = base64_values();
  if (text.size() != (out.size() + 2) / 3 * 4) return false;
  const size_t padding = (3 - out.size() % 3) % 3;
  for (size_t i = text.size() - padding; i < text.size(); ++i) {
    if (text[i] != '=') return false;
  }
  text.remove_suffix(padding);
  size_t at = 0;
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const int8_t v = values[uint8_t(text[i])];
    if (v < 0) return false;
    bits = bits << 6 | uint32_t(v);
    // Of every four digits, each of the last three completes a byte.
    if (i % 4 != 0) out[at++] = std::byte(bits >> (6 - 2 * (i % 4)));
  }
  return true;
}

}  // namespace hearth::inline sys
