#include "text/chat/python_str.h"

#include <wctype.h>

#include <algorithm>
#include <clocale>
#include <locale>

#include "sys/error.h"
#include "sys/utf8.h"
#include "text/tokenizer/unicode.h"

namespace hearth::jinja {
namespace {

struct CharAt {
  uint32_t code;
  size_t length;
};
CharAt char_at(std::string_view s, size_t at) {
  const Utf8Char c = read_utf8(s.data() + at, s.data() + s.size());
  return {c.code, size_t(c.length)};
}

// The start of the character that ends at `end` > 0.
size_t char_before(std::string_view s, size_t end) {
  for (size_t n = std::min<size_t>(4, end); n > 1; --n)
    if (char_at(s.substr(0, end), end - n).length == n) return end - n;
  return end - 1;
}

void add_code(MarkedText& out, uint32_t c, char mark) {
  append_utf8(out.bytes, c);
  out.marks.resize(out.bytes.size(), mark);
}

// Case mapping beyond ASCII from the C library: one code point to one.
class CaseTable {
 public:
  uint32_t convert(uint32_t c, bool upper) {
    if (c < 0x80) return upper ? (c - 'a' < 26 ? c - 32 : c) : (c - 'A' < 26 ? c + 32 : c);
    if (!locale_ && !(locale_ = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr)))
      fail("chat template", "upper and lower case need the locale C.UTF-8, which is not installed");
    return upper ? towupper_l(wint_t(c), locale_) : towlower_l(wint_t(c), locale_);
  }
  bool is_letter(uint32_t c) { return convert(c, true) != c || convert(c, false) != c; }
  ~CaseTable() {
    if (locale_) freelocale(locale_);
  }

 private:
  locale_t locale_ = nullptr;
};

}  // namespace

size_t char_bytes(std::string_view s, size_t at) { return char_at(s, at).length; }

uint32_t char_code(std::string_view s, size_t at) { return char_at(s, at).code; }

size_t char_count(std::string_view s) {
  size_t n = 0;
  for (size_t i = 0; i < s.size(); i += char_bytes(s, i)) ++n;
  return n;
}

size_t char_offset(std::string_view s, size_t chars) {
  size_t i = 0;
  while (chars-- && i < s.size()) i += char_bytes(s, i);
  return i;
}

bool is_space(uint32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

MarkedText strip(const MarkedText& t, Side side, std::optional<std::string_view> chars) {
  const auto goes = [&](size_t at, size_t length) {
    const std::string_view c = std::string_view(t.bytes).substr(at, length);
    return chars ? chars->find(c) != std::string_view::npos : is_space(char_at(t.bytes, at).code);
  };
  size_t begin = 0, end = t.size();
  while (side != Side::right && begin < end && goes(begin, char_bytes(t.bytes, begin)))
    begin += char_bytes(t.bytes, begin);
  while (side != Side::left && begin < end) {
    const size_t last = char_before(t.bytes, end);
    if (last < begin || !goes(last, end - last)) break;
    end = last;
  }
  return t.part(begin, end - begin);
}

std::vector<MarkedText> split(const MarkedText& t, std::string_view separator, int64_t most,
                              Side side) {
  std::vector<MarkedText> parts;
  size_t begin = 0, end = t.size();
  for (; most != 0; --most) {
    const bool left = side == Side::left;
    if (!left && end < separator.size()) break;
    const size_t at =
        left ? t.bytes.find(separator, begin) : t.bytes.rfind(separator, end - separator.size());
    if (at == std::string::npos) break;
    const size_t after = at + separator.size();
    parts.push_back(left ? t.part(begin, at - begin) : t.part(after, end - after));
    (left ? begin : end) = left ? after : at;
  }
  parts.push_back(t.part(begin, end - begin));
  if (side == Side::right) std::ranges::reverse(parts);
  return parts;
}

std::vector<MarkedText> split_words(const MarkedText& t, int64_t most) {
  std::vector<MarkedText> parts;
  const auto skip = [&](size_t i, bool spaces) {
    while (i < t.size() && is_space(char_at(t.bytes, i).code) == spaces)
      i += char_bytes(t.bytes, i);
    return i;
  };
  for (size_t i = skip(0, true); i < t.size(); --most) {
    const size_t end = most == 0 ? t.size() : skip(i, false);
    parts.push_back(t.part(i, end - i));
    i = skip(end, true);
  }
  return parts;
}

std::vector<MarkedText> split_lines(const MarkedText& t) {
  std::vector<MarkedText> lines;
  for (size_t i = 0; i < t.size();) {
    const size_t end = std::min(t.bytes.find_first_of("\n\r", i), t.size());
    lines.push_back(t.part(i, end - i));
    i = end + (t.bytes.compare(end, 2, "\r\n") == 0 ? 2 : 1);
  }
  return lines;
}

MarkedText replace(const MarkedText& t, std::string_view old, const MarkedText& by, int64_t most) {
  MarkedText out;
  size_t done = 0;
  for (size_t at = 0; most != 0; --most) {
    at = t.bytes.find(old, at);
    if (at == std::string::npos) break;
    out.add(t.part(done, at - done));
    out.add(by);
    done = at += old.size();
    if (!old.empty()) continue;
    if (at == t.size()) break;
    at += char_bytes(t.bytes, at);
  }
  out.add(t.part(done));
  return out;
}

MarkedText change_case(const MarkedText& t, Case wanted) {
  CaseTable table;
  MarkedText out;
  bool start = true;  // at the start of the text or, for title(), of a word
  for (size_t i = 0; i < t.size();) {
    const CharAt c = char_at(t.bytes, i);
    const bool upper = wanted == Case::upper || (wanted != Case::lower && start);
    if (c.code == 0xfffd)
      out.add(t.part(i, c.length));
    else
      add_code(out, table.convert(c.code, upper), t.marks[i]);
    start = wanted == Case::title && !table.is_letter(c.code);
    i += c.length;
  }
  return out;
}

MarkedText indent(const MarkedText& t, const MarkedText& by, bool first, bool blank) {
  MarkedText out;
  const std::vector<MarkedText> lines = split(t, "\n", -1, Side::left);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.add("\n");
    if (i == 0 ? first : blank || !lines[i].empty()) out.add(by);
    out.add(lines[i]);
  }
  return out;
}

}  // namespace hearth::jinja
