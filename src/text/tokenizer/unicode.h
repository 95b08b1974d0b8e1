// Character classes of the pre-tokeniser patterns (Unicode 16.0, the version tiktoken uses) and a
// UTF-8 reader that accepts any byte string.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace hearth::inline text {

// \p{M}, \p{N}, \s and the letters: [\p{Lu}\p{Lt}], \p{Ll}, [\p{Lm}\p{Lo}].
enum class CharClass : uint8_t { other, mark, number, space, upper, lower, caseless };

struct CodeRange {
  uint32_t first, last;
};
struct ClassRanges {
  CharClass kind;
  std::span<const CodeRange> ranges;
};

// Four bits per code point below `low_limit`, which covers all living scripts except the rarer
// ideographs.
constexpr uint32_t low_limit = 0x20000;
using ClassTable = std::array<uint8_t, low_limit / 2>;

constexpr ClassTable pack_classes(std::span<const ClassRanges> classes) {
  ClassTable table{};
  for (const ClassRanges& c : classes)
    for (const CodeRange r : c.ranges)
      for (uint32_t p = r.first; p <= r.last && p < low_limit; ++p)
        table[p / 2] = uint8_t(table[p / 2] | uint8_t(c.kind) << p % 2 * 4);
  return table;
}

// Defined in unicode_tables.cpp.
extern const ClassTable low_classes;
extern const std::span<const ClassRanges> class_ranges;
extern const std::span<const CodeRange> word_ranges;         // \w
extern const std::span<const CodeRange> punctuation_ranges;  // \p{P}; compatibility_tables.cpp

inline bool in_ranges(std::span<const CodeRange> ranges, uint32_t p) {
  const auto it = std::ranges::lower_bound(ranges, p, {}, &CodeRange::last);
  return it != ranges.end() && it->first <= p;
}

inline CharClass char_class(uint32_t p) {
  if (p < low_limit) return CharClass(low_classes[p / 2] >> p % 2 * 4 & 15);
  for (const ClassRanges& c : class_ranges)
    if (in_ranges(c.ranges, p)) return c.kind;
  return CharClass::other;
}

struct Utf8Char {
  uint32_t code;
  int length;      // in bytes
  int needed = 0;  // length of a well-formed but incomplete sequence
};

// The character at p < end. A byte outside any well-formed sequence (stray continuation, overlong
// form, surrogate, beyond U+10FFFF, truncated) is returned as U+FFFD with length 1. `needed` is
// also set if the sequence is valid so far but the text ends.
inline Utf8Char read_utf8(const char* p, const char* end) {
  const auto byte = [&](int i) { return uint32_t(uint8_t(p[i])); };
  const uint32_t b = byte(0);
  if (b < 0x80) return {b, 1};
  const int n = b >= 0xf0 ? 4 : b >= 0xe0 ? 3 : 2;
  if (b < 0xc2 || b > 0xf4) return {0xfffd, 1};
  // The range of the second byte excludes overlong forms, surrogates and values that are too large.
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

// The number of ASCII bytes at the start of the text.
inline size_t ascii_prefix(std::string_view text) {
  size_t i = 0;
  for (uint64_t w; i + 8 <= text.size(); i += 8) {
    std::memcpy(&w, text.data() + i, 8);
    if (w & 0x8080808080808080) break;
  }
  while (i < text.size() && uint8_t(text[i]) < 0x80) ++i;
  return i;
}

// The number of well-formed UTF-8 bytes at the start of the text.
inline size_t valid_prefix(std::string_view text) {
  const char *end = text.data() + text.size(), *p = text.data();
  while (p < end) {
    p += ascii_prefix({p, size_t(end - p)});
    for (; p < end && uint8_t(*p) >= 0x80;) {
      const Utf8Char c = read_utf8(p, end);
      if (c.length == 1) return size_t(p - text.data());
      p += c.length;
    }
  }
  return text.size();
}

}  // namespace hearth::inline text
