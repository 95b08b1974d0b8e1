// Character classes as the pre-tokeniser patterns see them (\p{L}, \p{N}, \s; Unicode 16.0, the
// version tiktoken uses) and a UTF-8 reader that takes any byte string.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

namespace hearth {

enum class CharClass : uint8_t { other, letter, number, space };

struct CodeRange {
  uint32_t first, last;
};

// Two bits a code point below `low_limit`, which holds all living scripts but the rarer ideographs.
constexpr uint32_t low_limit = 0x20000;
using ClassTable = std::array<uint8_t, low_limit / 4>;

constexpr ClassTable pack_classes(std::span<const CodeRange> letters,
                                  std::span<const CodeRange> numbers,
                                  std::span<const CodeRange> spaces) {
  ClassTable table{};
  const auto fill = [&](std::span<const CodeRange> ranges, CharClass c) {
    for (const CodeRange r : ranges)
      for (uint32_t p = r.first; p <= r.last && p < low_limit; ++p)
        table[p / 4] = uint8_t(table[p / 4] | uint8_t(c) << p % 4 * 2);
  };
  fill(letters, CharClass::letter);
  fill(numbers, CharClass::number);
  fill(spaces, CharClass::space);
  return table;
}

// In unicode_tables.cpp.
extern const ClassTable low_classes;
extern const std::span<const CodeRange> letter_ranges, number_ranges;

inline bool in_ranges(std::span<const CodeRange> ranges, uint32_t p) {
  const auto it = std::ranges::lower_bound(ranges, p, {}, &CodeRange::last);
  return it != ranges.end() && it->first <= p;
}

inline CharClass char_class(uint32_t p) {
  if (p < low_limit) return CharClass(low_classes[p / 4] >> p % 4 * 2 & 3);
  if (in_ranges(letter_ranges, p)) return CharClass::letter;
  return in_ranges(number_ranges, p) ? CharClass::number : CharClass::other;
}

struct Utf8Char {
  uint32_t code;
  int length;      // in bytes
  int needed = 0;  // bytes that a well-formed but unfinished sequence would have
};

// The character at p < end. A byte that belongs to no well-formed sequence (stray continuation,
// overlong form, surrogate, beyond U+10FFFF, cut short) is a character of its own: U+FFFD,
// length 1. `needed` is set as well where the sequence is right as far as it goes but the text
// ends.
inline Utf8Char read_utf8(const char* p, const char* end) {
  const auto byte = [&](int i) { return uint32_t(uint8_t(p[i])); };
  const uint32_t b = byte(0);
  if (b < 0x80) return {b, 1};
  const int n = b >= 0xf0 ? 4 : b >= 0xe0 ? 3 : 2;
  if (b < 0xc2 || b > 0xf4) return {0xfffd, 1};
  // The second byte carries the limits against overlong forms, surrogates and too large values.
  const uint32_t low = b == 0xe0 ? 0xa0 : b == 0xf0 ? 0x90 : 0x80;
  const uint32_t high = b == 0xed ? 0x9f : b == 0xf4 ? 0x8f : 0xbf;
  uint32_t code = b & (0x7fu >> n);
  for (int i = 1; i < n; ++i) {
    if (p + i == end) return {0xfffd, 1, n};
    const uint32_t c = byte(i);
    if (c < (i == 1 ? low : 0x80) || c > (i == 1 ? high : 0xbf)) return {0xfffd, 1};
    code = code << 6 | (c & 0x3f);
  }
  return {code, n};
}

}  // namespace hearth
