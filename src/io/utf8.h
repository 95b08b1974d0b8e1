// Code points as UTF-8.
#pragma once

#include <cstdint>
#include <string>

namespace hearth {

// Adds the code point, which is at most U+10FFFF.
inline void append_utf8(std::string& text, uint32_t code) {
  if (code < 0x80) {
    text += char(code);
    return;
  }
  const int n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  text += char((0xf00u >> n & 0xff) | code >> 6 * (n - 1));
  for (int i = n - 2; i >= 0; --i) text += char(0x80 | (code >> 6 * i & 0x3f));
}

}  // namespace hearth
