// Translates regular expressions from Oniguruma's syntax (Ruby) to PCRE2's.
#include "formats/json.h"
#include "sys/error.h"
#include "text/tokenizer/split_regex.h"

namespace hearth::inline text {
namespace {

// White_Space, and what Oniguruma takes as letters of words; PCRE2's own sets differ a little.
constexpr std::string_view space_set =
    R"(\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view word_set = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";

class SyntaxReader {
 public:
  SyntaxReader(std::string_view pattern, const std::string& where)
      : pattern_(pattern), where_(where) {}

  std::string translated() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\')
        escape();
      else if (c == '[')
        set();
      else if (c == '}')
        close_brace();
      else if (starts("(?"))
        group();
      else
        keep(1);
    }
    return std::move(out_);
  }

 private:
  bool starts(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  void keep(size_t n) {
    out_ += pattern_.substr(at_, n);
    at_ += n;
  }
  [[noreturn]] void refuse(std::string_view what) const {
    fail(where_, "expected a regular expression without {}, got {}", what, in_quotes(pattern_));
  }

  // Outside of sets.
  void escape() {
    if (at_ + 1 == pattern_.size()) refuse("a backslash at its end");
    const char c = pattern_[at_ + 1];
    const auto put = [&](std::string_view before, std::string_view set) {
      out_.append(before).append(set) += ']';
      at_ += 2;
    };
    switch (c) {
      case 's':
        return put("[", space_set);
      case 'S':
        return put("[^", space_set);
      case 'w':
        return put("[", word_set);
      case 'W':
        return put("[^", word_set);
      default:
        letter(c);
        keep(2);
        name_in_braces(c);
    }
  }

  // The braces of \p{L} and \x{85} repeat nothing.
  void name_in_braces(char c) {
    if (std::string_view("pPx").find(c) == std::string_view::npos || !starts("{")) return;
    const size_t end = pattern_.find('}', at_);
    if (end == pattern_.npos) refuse("a brace that does not end");
    keep(end + 1 - at_);
  }

  // Escapes that mean something else in PCRE2.
  void letter(char c) const {
    if (std::string_view("bBhHyYgGkKQENOCRXMZ").find(c) != std::string_view::npos)
      refuse(fmt::format("\\{}", c));
  }

  void set() {
    const size_t begin = at_;
    keep(1);
    if (at_ < pattern_.size() && pattern_[at_] == '^') keep(1);
    if (at_ < pattern_.size() && pattern_[at_] == ']') refuse("an empty set or a set of ]");
    while (at_ < pattern_.size() && pattern_[at_] != ']') {
      if (starts("[:"))
        refuse("named sets");
      else if (pattern_[at_] == '[')
        refuse("a set within a set");
      else if (starts("&&"))
        refuse("&& in a set");
      else if (pattern_[at_] == '\\')
        escape_in_set();
      else
        keep(1);
    }
    if (at_ == pattern_.size()) refuse(fmt::format("a set that does not end, from byte {}", begin));
    keep(1);
  }

  void escape_in_set() {
    if (at_ + 1 == pattern_.size()) refuse("a backslash at its end");
    const char c = pattern_[at_ + 1];
    if (c == 'S' || c == 'W') refuse(fmt::format("\\{} in a set", c));
    if (c == 's' || c == 'w') {
      out_ += c == 's' ? space_set : word_set;
      at_ += 2;
      return;
    }
    letter(c);
    keep(2);
  }

  // {1,3}+ repeats the repetition there and is possessive here; {3}? is optional there.
  void close_brace() {
    keep(1);
    if (at_ < pattern_.size() && (pattern_[at_] == '+' || pattern_[at_] == '?'))
      refuse(fmt::format("}}{}", pattern_[at_]));
  }

  // (?m) is dotall there.
  void group() {
    size_t end = at_ + 2;
    while (end < pattern_.size() &&
           std::string_view("imxsa-").find(pattern_[end]) != std::string_view::npos)
      ++end;
    const std::string_view flags = pattern_.substr(at_ + 2, end - at_ - 2);
    if (flags.find_first_not_of("i-") != flags.npos)
      refuse(fmt::format("the options {}", in_quotes(flags)));
    if (pattern_.substr(end).starts_with("~") || pattern_.substr(end).starts_with("{"))
      refuse("(?~ and (?{");
    keep(end - at_);
  }

  std::string_view pattern_;
  const std::string& where_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string pcre2_syntax(std::string_view oniguruma, const std::string& where) {
  return SyntaxReader(oniguruma, where).translated();
}

}  // namespace hearth::inline text
