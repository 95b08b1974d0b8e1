#include "text/tokenizer/scanner.h"

#include <array>
#include <bit>
#include <cstring>

#include "text/tokenizer/unicode.h"

namespace hearth::inline text {
namespace {

// A set of character classes as bits.
using Classes = uint32_t;
constexpr Classes set_of(CharClass c) { return 1u << int(c); }
constexpr Classes numbers = set_of(CharClass::number), blanks = set_of(CharClass::space);
constexpr Classes marks = set_of(CharClass::mark), symbols = set_of(CharClass::other) | marks;
constexpr Classes cased = set_of(CharClass::upper), small = set_of(CharClass::lower);
constexpr Classes either =
    set_of(CharClass::caseless) | marks;  // o200k: counts as upper and as lower case
constexpr Classes letters = cased | small | set_of(CharClass::caseless);

// CharClass of the ASCII bytes; `beyond` refers other bytes to the Unicode tables.
constexpr uint8_t beyond = 7;
constexpr std::array<uint8_t, 256> byte_class = [] {
  std::array<uint8_t, 256> t{};
  for (int b = 0; b < 256; ++b) {
    const bool space = b == ' ' || (b >= 9 && b <= 13);
    t[size_t(b)] = b >= 128 ? beyond
                            : uint8_t(b >= 'A' && b <= 'Z'   ? CharClass::upper
                                      : b >= 'a' && b <= 'z' ? CharClass::lower
                                      : b >= '0' && b <= '9' ? CharClass::number
                                      : space                ? CharClass::space
                                                             : CharClass::other);
  }
  return t;
}();

constexpr uint64_t ones = 0x0101010101010101;
static_assert(std::endian::native == std::endian::little);

inline uint64_t eight_bytes(const char* p) {
  uint64_t w;
  std::memcpy(&w, p, 8);
  return w;
}

// The number of leading ASCII letters in 8 bytes. One comparison of eight bytes instead of a loop
// whose length the branch predictor cannot guess.
inline int leading_letters(uint64_t w) {
  constexpr uint64_t high = 0x80 * ones;
  const uint64_t low = (w | 0x20 * ones) & ~high;
  const uint64_t from_a = low + (0x80 - 'a') * ones, beyond_z = low + (0x7f - 'z') * ones;
  const uint64_t other = (~from_a | beyond_z | w) & high;
  return std::countr_zero(other) / 8;  // 8 if all are letters
}

// The fast path for most words: a few ASCII letters followed by another ASCII character. 0 means
// use the general path (longer words, other scripts, no letter).
inline int ascii_word(const char* q, const char* end) {
  if (end - q <= 8) return 0;
  const int n = leading_letters(eight_bytes(q));
  return n < 8 && uint8_t(q[n]) < 0x80 ? n : 0;
}

struct Char {
  Classes kind;
  int length;
};

inline Char char_at(const char* p, const char* end) {
  const uint8_t k = byte_class[uint8_t(*p)];
  if (k != beyond) return {1u << k, 1};
  const Utf8Char c = read_utf8(p, end);
  return {set_of(char_class(c.code)), c.length};
}

// The end of the run of characters in the given classes that continues at p.
template <Classes kinds>
inline const char* run_end(const char* p, const char* end) {
  while (p < end) {
    const Char c = char_at(p, end);
    if (!(c.kind & kinds)) break;
    p += c.length;
  }
  return p;
}

inline bool is_newline(char c) { return c == '\n' || c == '\r'; }

// The length of 's|'t|'re|'ve|'m|'ll|'d at an apostrophe, or 0. With (?i:...) letters match in any
// case, and the long s folds to s.
template <bool any_case>
inline int contraction(const char* p, const char* end) {
  constexpr int fold = any_case ? 0x20 : 0;
  if (end - p < 2 || *p != '\'') return 0;
  const int a = p[1] | fold;
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if (end - p < 3) return 0;
  if (any_case && p[1] == '\xc5' && p[2] == '\xbf') return 3;
  const int b = p[2] | fold;
  return ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

// \s*[\r\n]+|\s+(?!\S)|\s+ : a run of spaces ends at its last line break; a run without one leaves
// its last character for the next word, unless nothing would remain. Without `lines`, line breaks
// are ordinary spaces; with `at_end`, a run at the end of the text is one word (\s++$).
template <bool lines, bool at_end>
const char* space_word(const char* p, const char* end) {
  const char *q = p, *last = p, *line = nullptr;
  while (q < end) {
    const Char c = char_at(q, end);
    if (!(c.kind & blanks)) break;
    last = q;
    q += c.length;
    if (lines && is_newline(*last)) line = q;
  }
  if (at_end && q == end) return q;
  if (line) return line;
  return q == end || last == p ? q : last;
}

const char* scan_gpt2(const char* p, const char* end) {
  if (const int n = contraction<false>(p, end)) return p + n;
  const char* q = p + (*p == ' ');
  if (q == end) return end;
  if (const int n = ascii_word(q, end)) return q + n;
  const Char c = char_at(q, end);
  if (c.kind & letters) return run_end<letters>(q + c.length, end);
  if (c.kind & numbers) return run_end<numbers>(q + c.length, end);
  if (c.kind & symbols) return run_end<symbols>(q + c.length, end);
  return space_word<false, false>(p, end);
}

// \p{N}{1,most} after the first digit was read.
template <int most>
inline const char* digits_end(const char* p, const char* end) {
  for (int n = 1; n < most && p < end; ++n) {
    const Char c = char_at(p, end);
    if (!(c.kind & numbers)) break;
    p += c.length;
  }
  return p;
}

// The patterns of cl100k and similar after words and numbers: ` ?[^\s\p{L}\p{N}]+[\r\n]*` and
// spaces. In o200k `slash` also belongs to the tail.
template <bool slash, bool at_end>
const char* symbol_or_space(const char* p, const char* end) {
  const char* q = run_end<symbols>(p + (*p == ' '), end);
  if (q == p + (*p == ' ')) return space_word<true, at_end>(p, end);
  while (q < end && (is_newline(*q) || (slash && *q == '/'))) ++q;
  return q;
}

// A word may include one preceding character that is not a letter, number or line break.
inline bool may_lead(const Char& c, char byte) {
  return !(c.kind & (letters | numbers)) && !is_newline(byte);
}

template <int most_digits, bool at_end>
const char* scan_cl100k(const char* p, const char* end) {
  if (const int n = contraction<true>(p, end)) return p + n;
  const char* q = p + (*p == ' ');
  if (const int n = ascii_word(q, end)) return q + n;
  const Char c = char_at(p, end);
  q = p + c.length;
  if (c.kind & letters) return run_end<letters>(q, end);
  if (c.kind & numbers) return digits_end<most_digits>(q, end);
  if (may_lead(c, *p)) {
    const char* word = run_end<letters>(q, end);
    if (word > q) return word;
  }
  return symbol_or_space<false, at_end>(p, end);
}

// [upper]*[lower]+ and [upper]+ at p, where Lm, Lo and M belong to both; null: no match.
struct CasedWord {
  const char *mixed = nullptr, *upper = nullptr;
};

// The upper run is greedy. If no lower-case letter follows, it backtracks to the last character
// that may also be lower case, and the word ends with that one.
inline CasedWord cased_word(const char* p, const char* end) {
  CasedWord word;
  const char* q = p;
  while (q < end) {
    const Char c = char_at(q, end);
    if (c.kind & small) {
      word.mixed = run_end<small | either>(q, end);
      return word;
    }
    if (!(c.kind & (cased | either))) break;
    q += c.length;
    if (c.kind & either) word.mixed = q;
  }
  if (q > p) word.upper = q;
  return word;
}

// The fast path of o200k for short ASCII words: capitals, then lower-case letters (bit 5 is set).
inline int ascii_cased_word(const char* q, const char* end) {
  const int n = ascii_word(q, end);
  if (n == 0) return 0;
  const uint64_t small_bits = eight_bytes(q) & 0x20 * ones;
  const int capitals = std::countr_zero(small_bits) / 8;
  if (capitals >= n) return n;
  const uint64_t later = ~small_bits & 0x20 * ones & ~uint64_t(0) << 8 * capitals;
  return std::min(n, std::countr_zero(later) / 8);
}

const char* scan_o200k(const char* p, const char* end) {
  const char* q = p + (*p == ' ');
  if (const int n = ascii_cased_word(q, end)) return q + n + contraction<true>(q + n, end);
  const Char c = char_at(p, end);
  const char* found = nullptr;
  if (c.kind & letters) {
    const CasedWord word = cased_word(p, end);
    found = word.mixed ? word.mixed : word.upper;
  } else if (may_lead(c, *p)) {
    q = p + c.length;
    const CasedWord word = cased_word(q, end);
    // A mark that starts no mixed word is a word by itself; this takes precedence over leading
    // capitals.
    found = word.mixed ? word.mixed : c.kind & marks ? q : word.upper;
  }
  if (found) return found + (found < end ? contraction<true>(found, end) : 0);
  if (c.kind & numbers) return digits_end<3>(p + c.length, end);
  return symbol_or_space<true, false>(p, end);
}

const char* scan_whole(const char*, const char* end) { return end; }

const char* find_space(const char* p, const char* end) {
  const void* at = p < end ? std::memchr(p, ' ', size_t(end - p)) : nullptr;
  return at ? static_cast<const char*>(at) : end;
}

const char* scan_spaces(const char* p, const char* end) { return find_space(p + 1, end); }

const char* scan_runs(const char* p, const char* end) {
  while (p < end && *p == ' ') ++p;
  return find_space(p, end);
}

struct Known {
  Pattern pattern;
  std::string_view name, regex;
};

#define HEARTH_CONTRACTIONS R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"
#define HEARTH_O200K_UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define HEARTH_O200K_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define HEARTH_LEAD R"([^\r\n\p{L}\p{N}]?)"

// tiktoken's spelling of cl100k has another meaning in Hugging Face's engine (a quantifier after a
// quantifier, $). The spelling here has tiktoken's meaning in both.
constexpr Known known_patterns[] = {
    {Pattern::gpt2, "gpt2",
     R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {Pattern::cl100k, "cl100k",
     HEARTH_CONTRACTIONS "|" HEARTH_LEAD
                         R"(\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+\z|\s*[\r\n]+)"
                         R"(|\s+(?!\S)|\s+)"},
    {Pattern::llama3, "llama3",
     HEARTH_CONTRACTIONS "|" HEARTH_LEAD
                         R"(\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {Pattern::o200k, "o200k",
     HEARTH_LEAD HEARTH_O200K_UPPER "*" HEARTH_O200K_LOWER "+" HEARTH_CONTRACTIONS
                                    "?|" HEARTH_LEAD HEARTH_O200K_UPPER "+" HEARTH_O200K_LOWER
                                    "*" HEARTH_CONTRACTIONS
                                    R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+)"
                                    R"(|\s+(?!\S)|\s+)"},
    {Pattern::qwen2, "qwen2",
     HEARTH_CONTRACTIONS "|" HEARTH_LEAD
                         R"(\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    // Other spellings.
    {Pattern::llama3,
     {},
     R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3})"
     R"(| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)"},
};

#undef HEARTH_CONTRACTIONS
#undef HEARTH_O200K_UPPER
#undef HEARTH_O200K_LOWER
#undef HEARTH_LEAD

std::optional<Pattern> pattern_with(std::string_view Known::*member, std::string_view text) {
  const auto it = std::ranges::find(known_patterns, text, member);
  if (text.empty() || it == std::end(known_patterns)) return std::nullopt;
  return it->pattern;
}

const Known* known(Pattern p) {
  const auto it = std::ranges::find(known_patterns, p, &Known::pattern);
  return it == std::end(known_patterns) ? nullptr : it;
}

}  // namespace

std::optional<Pattern> pattern_named(std::string_view name) {
  return pattern_with(&Known::name, name);
}

std::optional<Pattern> pattern_of_regex(std::string_view regex) {
  return pattern_with(&Known::regex, regex);
}

std::string_view pattern_name(Pattern p) {
  const Known* k = known(p);
  return k ? k->name : std::string_view();
}

std::string_view pattern_regex(Pattern p) {
  const Known* k = known(p);
  return k ? k->regex : std::string_view();
}

std::string pattern_names() {
  std::string names;
  for (const Known& k : known_patterns)
    if (!k.name.empty()) (names += names.empty() ? "" : ", ") += k.name;
  return names;
}

Scanner scanner_of(Pattern p) {
  switch (p) {
    case Pattern::gpt2:
      return scan_gpt2;
    case Pattern::cl100k:
      return scan_cl100k<3, true>;
    case Pattern::llama3:
      return scan_cl100k<3, false>;
    case Pattern::o200k:
      return scan_o200k;
    case Pattern::qwen2:
      return scan_cl100k<1, false>;
    case Pattern::whole:
      return scan_whole;
    case Pattern::runs:
      return scan_runs;
    case Pattern::spaces:
      return scan_spaces;
    case Pattern::steps:
      break;
  }
  return nullptr;
}

}  // namespace hearth::inline text
