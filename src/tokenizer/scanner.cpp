#include "tokenizer/scanner.h"

#include <array>
#include <bit>
#include <cstring>

#include "tokenizer/unicode.h"

namespace hearth {
namespace {

constexpr std::string_view gpt2_regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// CharClass of the ASCII bytes; `beyond` sends the others to the Unicode tables.
constexpr uint8_t beyond = 4;
constexpr std::array<uint8_t, 256> byte_class = [] {
  std::array<uint8_t, 256> t{};
  for (int b = 0; b < 256; ++b) {
    const bool letter = (b | 32) >= 'a' && (b | 32) <= 'z', number = b >= '0' && b <= '9';
    const bool space = b == ' ' || (b >= 9 && b <= 13);
    t[size_t(b)] = b >= 128 ? beyond
                            : uint8_t(letter   ? CharClass::letter
                                      : number ? CharClass::number
                                      : space  ? CharClass::space
                                               : CharClass::other);
  }
  return t;
}();

// How many of the 8 bytes at p are ASCII letters before one that is not. One comparison of eight
// bytes instead of a loop whose length the branch predictor cannot guess.
inline int leading_letters(const char* p) {
  static_assert(std::endian::native == std::endian::little);
  constexpr uint64_t ones = 0x0101010101010101, high = 0x80 * ones;
  uint64_t w;
  std::memcpy(&w, p, 8);
  const uint64_t low = (w | 0x20 * ones) & ~high;
  const uint64_t from_a = low + (0x80 - 'a') * ones, beyond_z = low + (0x7f - 'z') * ones;
  const uint64_t other = (~from_a | beyond_z | w) & high;
  return std::countr_zero(other) / 8;  // 8 where there is none
}

struct Char {
  CharClass kind;
  int length;
};

inline Char char_at(const char* p, const char* end) {
  const uint8_t k = byte_class[uint8_t(*p)];
  if (k != beyond) return {CharClass(k), 1};
  const Utf8Char c = read_utf8(p, end);
  return {char_class(c.code), c.length};
}

// The end of the run of characters of one class that goes on at p.
inline const char* run_end(const char* p, const char* end, CharClass kind) {
  while (p < end) {
    const uint8_t k = byte_class[uint8_t(*p)];
    if (k == uint8_t(kind)) {
      ++p;
      continue;
    }
    if (k != beyond) break;
    const Utf8Char c = read_utf8(p, end);
    if (char_class(c.code) != kind) break;
    p += c.length;
  }
  return p;
}

// 's|'t|'re|'ve|'m|'ll|'d at an apostrophe: its length, or 0.
inline int contraction(const char* p, const char* end) {
  if (end - p < 2) return 0;
  const char a = p[1];
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if (end - p < 3) return 0;
  const char b = p[2];
  return ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

// \s+(?!\S)|\s+ : a run of spaces keeps its last character for the word that follows, unless that
// would leave nothing.
const char* space_word(const char* p, const char* end) {
  const char *q = p, *last = p;
  while (q < end) {
    const Char c = char_at(q, end);
    if (c.kind != CharClass::space) return last > p ? last : q;
    last = q;
    q += c.length;
  }
  return end;
}

const char* scan_gpt2(const char* p, const char* end) {
  if (*p == '\'')
    if (const int n = contraction(p, end)) return p + n;
  const char* q = p + (*p == ' ');
  if (q == end) return end;
  if (end - q > 8) {  // most words: a few ASCII letters
    const int n = leading_letters(q);
    if (n > 0 && n < 8 && uint8_t(q[n]) < 0x80) return q + n;
  }
  const Char c = char_at(q, end);
  if (c.kind == CharClass::space) return space_word(p, end);
  return run_end(q + c.length, end, c.kind);
}

}  // namespace

std::optional<Pattern> pattern_named(std::string_view name) {
  if (name == "gpt2") return Pattern::gpt2;
  return std::nullopt;
}

std::optional<Pattern> pattern_of_regex(std::string_view regex) {
  if (regex == gpt2_regex) return Pattern::gpt2;
  return std::nullopt;
}

std::string_view pattern_name(Pattern p) {
  switch (p) {
    case Pattern::gpt2:
      return "gpt2";
  }
  return {};
}

std::string_view pattern_regex(Pattern p) {
  switch (p) {
    case Pattern::gpt2:
      return gpt2_regex;
  }
  return {};
}

Scanner scanner_of(Pattern p) {
  switch (p) {
    case Pattern::gpt2:
      return scan_gpt2;
  }
  return nullptr;
}

}  // namespace hearth
