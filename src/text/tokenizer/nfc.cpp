#include "text/tokenizer/nfc.h"

#include <algorithm>
#include <bitset>
#include <unordered_map>
#include <vector>

#include "sys/utf8.h"
#include "text/tokenizer/unicode.h"

namespace hearth::inline text {
namespace {

constexpr uint32_t first_restless = 0x300;  // earlier characters are normalised and never compose
constexpr uint32_t table_end = 0x30000;     // later characters neither decompose nor combine

// A Hangul syllable is a leading consonant, a vowel and optionally a trailing consonant.
constexpr uint32_t hangul = 0xac00, leads = 0x1100, vowels = 0x1161, trails = 0x11a7;
constexpr uint32_t lead_count = 19, vowel_count = 21, trail_count = 28;
constexpr uint32_t hangul_count = lead_count * vowel_count * trail_count;

struct Tables {
  std::bitset<table_end> restless;  // not normalised, or may compose with an earlier character
  std::unordered_map<uint64_t, uint32_t> pairs;

  Tables() {
    for (const CombiningRange& r : combining_ranges)
      for (uint32_t c = r.first; c <= r.last; ++c) restless.set(c);
    for (const Decomposition& d : decompositions) {
      if (!d.composes) {
        restless.set(d.code);
        continue;
      }
      pairs.emplace(key(d.to[0], d.to[1]), d.code);
      restless.set(d.to[1]);
    }
    for (uint32_t c = vowels; c < vowels + vowel_count; ++c) restless.set(c);
    for (uint32_t c = trails + 1; c < trails + trail_count; ++c) restless.set(c);
  }

  static uint64_t key(uint32_t a, uint32_t b) { return uint64_t(a) << 32 | b; }
};

const Tables& tables() {
  static const Tables t;
  return t;
}

bool is_restless(uint32_t c) {
  return c >= first_restless && c < table_end && tables().restless[c];
}

uint8_t combining_rank(uint32_t c) {
  const auto it = std::ranges::lower_bound(combining_ranges, c, {}, &CombiningRange::last);
  return it != combining_ranges.end() && it->first <= c ? it->rank : 0;
}

struct Ranked {
  uint32_t code;
  uint8_t rank;
};

void decompose(std::vector<Ranked>& out, uint32_t c) {
  if (c - hangul < hangul_count) {
    const uint32_t s = c - hangul;
    out.push_back({leads + s / (vowel_count * trail_count), 0});
    out.push_back({vowels + s / trail_count % vowel_count, 0});
    if (s % trail_count) out.push_back({trails + s % trail_count, 0});
    return;
  }
  const auto it = std::ranges::lower_bound(decompositions, c, {}, &Decomposition::code);
  if (it == decompositions.end() || it->code != c) {
    out.push_back({c, combining_rank(c)});
    return;
  }
  for (const uint32_t part : it->to)
    if (part) decompose(out, part);
}

void decompose_compatible(std::vector<Ranked>& out, uint32_t c) {
  const auto range = std::ranges::lower_bound(compatible_ranges, c, {}, &CompatibleRange::last);
  if (range != compatible_ranges.end() && range->first <= c) {
    const uint32_t to = range->to + (c - range->first);
    out.push_back({to, combining_rank(to)});
    return;
  }
  const auto text = std::ranges::lower_bound(compatible_texts, c, {}, &CompatibleText::code);
  if (text == compatible_texts.end() || text->code != c) return decompose(out, c);
  for (const uint32_t part : compatible_codes.subspan(text->begin, text->count))
    out.push_back({part, combining_rank(part)});
}

// The composition of two characters, or 0.
uint32_t composed(uint32_t a, uint32_t b) {
  if (a - leads < lead_count && b - vowels < vowel_count)
    return hangul + ((a - leads) * vowel_count + (b - vowels)) * trail_count;
  if (a - hangul < hangul_count && (a - hangul) % trail_count == 0 &&
      b - trails - 1 < trail_count - 1)
    return a + (b - trails);
  const auto it = tables().pairs.find(Tables::key(a, b));
  return it == tables().pairs.end() ? 0 : it->second;
}

// Sorts the marks between two starters by rank.
void sort_marks(std::span<Ranked> chars) {
  for (auto at = chars.begin(); at < chars.end();) {
    const auto end = std::find_if(at, chars.end(), [](const Ranked& c) { return c.rank == 0; });
    std::stable_sort(at, end, [](const Ranked& a, const Ranked& b) { return a.rank < b.rank; });
    at = end == chars.end() ? end : end + 1;
  }
}

// Each character composes with the last starter if the pair has a composition and no character of
// equal or higher rank (or another starter) is between them.
void compose(std::vector<Ranked>& chars) {
  size_t n = 0, starter = chars.size();
  for (size_t i = 0; i < chars.size(); ++i) {
    const Ranked c = chars[i];
    if (starter < n) {
      const bool next = starter + 1 == n;
      const uint32_t made = next || (chars[n - 1].rank != 0 && chars[n - 1].rank < c.rank)
                                ? composed(chars[starter].code, c.code)
                                : 0;
      if (made) {
        chars[starter].code = made;
        continue;
      }
    }
    if (c.rank == 0) starter = n;
    chars[n++] = c;
  }
  chars.resize(n);
}

// The offset of the starter before the first character of `text` that needs work; text.size() if
// none does.
size_t settled_prefix(std::string_view text) {
  const char *begin = text.data(), *end = begin + text.size(), *p = begin, *before = begin;
  while (p < end) {
    if (const size_t n = ascii_prefix({p, size_t(end - p)})) {
      p += n;
      before = p - 1;
      continue;
    }
    const Utf8Char c = read_utf8(p, end);
    if (is_restless(c.code)) return size_t(before - begin);
    before = p;
    p += c.length;
  }
  return text.size();
}

// The end of the part from p that can be normalised by itself: before the next settled character or
// the next invalid byte.
const char* stretch_end(const char* p, const char* end) {
  p += read_utf8(p, end).length;
  while (p < end) {
    const Utf8Char c = read_utf8(p, end);
    if (!is_restless(c.code)) break;
    p += c.length;
  }
  return p;
}

void normalise_stretch(std::string& out, std::string_view text, std::vector<Ranked>& chars) {
  chars.clear();
  const char *p = text.data(), *end = p + text.size();
  if (const Utf8Char c = read_utf8(p, end);
      c.code == 0xfffd) {  // U+FFFD, or an invalid byte, copied unchanged
    out.append(p, size_t(c.length));
    p += c.length;
  }
  while (p < end) {
    const Utf8Char c = read_utf8(p, end);
    decompose(chars, c.code);
    p += c.length;
  }
  sort_marks(chars);
  compose(chars);
  for (const Ranked& c : chars) append_utf8(out, c.code);
}

}  // namespace

std::string_view nfc(std::string_view text, std::string& storage) {
  size_t done = settled_prefix(text);
  if (done == text.size()) return text;
  storage.clear();
  storage.reserve(text.size());
  std::vector<Ranked> chars;
  std::string_view rest = text;
  for (;;) {
    storage += rest.substr(0, done);
    rest.remove_prefix(done);
    if (rest.empty()) return storage;
    const char* end = rest.data() + rest.size();
    const size_t n = size_t(stretch_end(rest.data(), end) - rest.data());
    normalise_stretch(storage, rest.substr(0, n), chars);
    rest.remove_prefix(n);
    done = settled_prefix(rest);
  }
}

std::string normal_form(std::string_view text, NormalForm form) {
  if (ascii_prefix(text) == text.size()) return std::string(text);
  const bool composes = form == NormalForm::c || form == NormalForm::kc;
  const bool compatible = form == NormalForm::kc || form == NormalForm::kd;
  std::string out;
  std::vector<Ranked> chars;
  const auto flush = [&] {
    sort_marks(chars);
    if (composes) compose(chars);
    for (const Ranked& c : chars) append_utf8(out, c.code);
    chars.clear();
  };
  const char *p = text.data(), *end = p + text.size();
  while (p < end) {
    const Utf8Char c = read_utf8(p, end);
    if (c.code == 0xfffd && c.length == 1) {  // an invalid byte
      flush();
      out += *p;
    } else if (compatible) {
      decompose_compatible(chars, c.code);
    } else {
      decompose(chars, c.code);
    }
    p += c.length;
  }
  flush();
  return out;
}

}  // namespace hearth::inline text
