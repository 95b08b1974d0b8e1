// UTF-8 encoding of code points.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hearth::inline sys {

// Appends the code point, which must be at most U+10FFFF.
inline void append_utf8(std::string& text, uint32_t code) {
  if (code < 0x80) {
    text += char(code);
    return;
  }
  const int n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  text += char((0xf00u >> n & 0xff) | code >> 6 * (n - 1));
  for (int i = n - 2; i >= 0; --i) text += char(0x80 | (code >> 6 * i & 0x3f));
}

// The size in bytes of the well-formed character at the start of `text`; 0: there is none.
inline size_t utf8_size(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](size_t i) { return uint8_t(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t n = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < n) return 0;
  for (size_t i = 1; i < n; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  // Overlong forms, surrogates and code points above U+10FFFF.
  const bool wrong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f) ||
                     (first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) > 0x8f);
  return wrong ? 0 : n;
}

inline bool is_utf8(std::string_view text) {
  for (size_t n; !text.empty(); text.remove_prefix(n))
    if ((n = utf8_size(text)) == 0) return false;
  return true;
}

}  // namespace hearth::inline sys
