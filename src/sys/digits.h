// Base64 and hexadecimal digits.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace hearth::inline sys {

// Fills `out` exactly; false if `text` is not the padded base64 of that many bytes.
bool decode_base64(std::span<std::byte> out, std::string_view text);

// The value of a hexadecimal digit of either case; -1: it is none.
constexpr int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

}  // namespace hearth::inline sys
