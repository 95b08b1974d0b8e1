#include "grammar/regex_phrase.h"

#include <algorithm>
#include <optional>

#include "formats/json.h"
#include "sys/digits.h"
#include "sys/error.h"

namespace hearth::inline grammar {
namespace {

constexpr size_t most_pattern = 64 << 10;  // bytes
constexpr int most_groups = 200;           // nested

const CodeSet digits{{'0', '9'}};
const CodeSet word{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodeSet space{{'\t', '\r'}, {' ', ' '}};

// A part of a pattern: what it matches, and whether it is anchored at its ends.
struct Anchored {
  Phrase phrase;
  bool begins = false, ends = false;
};

class RegexReader {
 public:
  RegexReader(ByteGrammar& g, std::string_view pattern, WriteClass write)
      : grammar_(g), pattern_(pattern), write_(std::move(write)) {
    if (pattern.size() > most_pattern)
      fail_usage(g.where(), "expected a pattern of at most {} bytes, got {}", most_pattern,
                 pattern.size());
    if (valid_prefix(pattern) != pattern.size())
      refuse(valid_prefix(pattern), "expected UTF-8, got another byte");
  }

  // The alternatives of the whole pattern.
  std::vector<Anchored> all() {
    std::vector<Anchored> branches = alternatives(0);
    if (at_ < pattern_.size()) refuse(at_, "expected the end of the pattern, got )");
    return branches;
  }

 private:
  template <class... A>
  [[noreturn]] void refuse(size_t at, fmt::format_string<A...> what, A&&... args) const {
    fail_usage(grammar_.where(), "at byte {} of {}: {}", at, in_quotes(pattern_),
               fmt::format(what, std::forward<A>(args)...));
  }
  bool more() const { return at_ < pattern_.size(); }
  bool next_is(std::string_view s) const { return pattern_.substr(at_).starts_with(s); }
  bool take(std::string_view s) {
    const bool found = next_is(s);
    if (found) at_ += s.size();
    return found;
  }
  uint32_t take_code() {
    const Utf8Char c = read_utf8(pattern_.data() + at_, pattern_.data() + pattern_.size());
    at_ += size_t(c.length);
    return c.code;
  }

  std::vector<Anchored> alternatives(int depth);
  Anchored branch(int depth);
  Phrase group(int depth);
  Anchored atom(int depth);
  Phrase repeated(Phrase);
  std::optional<std::pair<int64_t, int64_t>> counts();
  CodeSet escape(bool in_class);
  uint32_t hex(int least, int most);
  uint32_t unicode_escape();
  CodeSet bracket();
  CodeSet bracket_item();

  ByteGrammar& grammar_;
  const std::string_view pattern_;
  const WriteClass write_;
  size_t at_ = 0;
};

std::vector<Anchored> RegexReader::alternatives(int depth) {
  if (depth > most_groups) refuse(at_, "expected at most {} nested groups, got more", most_groups);
  std::vector<Anchored> branches{branch(depth)};
  while (take("|")) branches.push_back(branch(depth));
  return branches;
}

// One alternative. Anchors count only at its ends; elsewhere they could never match.
Anchored RegexReader::branch(int depth) {
  Anchored whole{};
  while (take("^")) whole.begins = true;
  std::vector<Phrase> parts;
  while (more() && !next_is("|") && !next_is(")")) {
    if (next_is("^")) refuse(at_, "^ is supported only at the start of an alternative");
    if (take("$")) {
      whole.ends = true;
      continue;
    }
    if (whole.ends) refuse(at_ - 1, "$ is supported only at the end of an alternative");
    const size_t begin = at_;
    const Anchored a = atom(depth);
    if ((a.begins && !parts.empty()) || (a.ends && more() && !next_is("|") && !next_is(")")))
      refuse(begin, "^ and $ are supported only at the ends of an alternative");
    whole.begins |= a.begins, whole.ends |= a.ends;
    parts.push_back(a.begins || a.ends ? a.phrase : repeated(a.phrase));
  }
  whole.phrase = grammar_.sequence(std::move(parts));
  return whole;
}

// A group whose alternatives are all anchored alike passes its anchors on.
Anchored RegexReader::atom(int depth) {
  const size_t begin = at_;
  if (take("(")) {
    if (take("?")) {
      for (const auto& [sign, name] : {std::pair("=", "lookahead"),
                                       {"!", "lookahead"},
                                       {"<=", "lookbehind"},
                                       {"<!", "lookbehind"},
                                       {">", "an atomic group"},
                                       {"#", "a comment"}})
        if (next_is(sign)) refuse(begin, "{} is not supported", name);
      if (take("<") || take("P<")) {
        const size_t end = pattern_.find('>', at_);
        if (end == std::string_view::npos) refuse(begin, "expected a group name that ends with >");
        at_ = end + 1;
      } else if (!take(":")) {
        refuse(begin, "flags of a group are not supported");
      }
    }
    const std::vector<Anchored> branches = alternatives(depth + 1);
    if (!take(")")) refuse(begin, "expected ) for this (, got the end of the pattern");
    std::vector<Phrase> phrases;
    for (const Anchored& b : branches) {
      if (b.begins != branches[0].begins || b.ends != branches[0].ends)
        refuse(begin, "expected the same ^ and $ in every alternative of a group");
      phrases.push_back(b.phrase);
    }
    return {grammar_.choice(std::move(phrases)), branches[0].begins, branches[0].ends};
  }
  if (take("[")) return {write_(bracket())};
  if (take("."))
    return {write_(CodeSet{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}.complement())};
  if (take("\\")) return {write_(escape(false))};
  if (next_is("*") || next_is("+") || next_is("?"))
    refuse(at_, "expected something to repeat before {}", pattern_[at_]);
  if (next_is("{") && counts()) refuse(begin, "expected something to repeat before {{");
  const uint32_t code = take_code();
  return {write_(CodeSet{{code, code}})};
}

// {m}, {m,} or {m,n}; nothing if the brace is plain text.
std::optional<std::pair<int64_t, int64_t>> RegexReader::counts() {
  const size_t begin = at_;
  const auto number = [&]() -> int64_t {
    int64_t n = -1;
    for (; more() && pattern_[at_] >= '0' && pattern_[at_] <= '9'; ++at_)
      n = std::min<int64_t>(std::max<int64_t>(n, 0) * 10 + (pattern_[at_] - '0'), 1'000'000);
    return n;
  };
  if (!take("{")) return {};
  const int64_t least = number();
  const bool comma = take(",");
  const int64_t most = comma ? number() : least;
  if (least < 0 || !take("}")) {
    at_ = begin;
    return {};
  }
  if (most >= 0 && most < least)
    refuse(begin, "expected a maximum of at least {}, got {}", least, most);
  if (std::max(least, most) > most_repeats)
    refuse(begin, "expected at most {} repetitions, got {}", most_repeats, std::max(least, most));
  return std::pair(least, most);
}

Phrase RegexReader::repeated(Phrase p) {
  for (int times = 0;; ++times) {
    const size_t begin = at_;
    std::optional<std::pair<int64_t, int64_t>> range;
    if (take("*"))
      range = {0, -1};
    else if (take("+"))
      range = {1, -1};
    else if (take("?"))
      range = {0, 1};
    else if (next_is("{"))
      range = counts();
    if (!range) return p;
    if (times > 0) refuse(begin, "expected one repetition, got a second one");
    if (next_is("+")) refuse(begin, "a possessive repetition is not supported");
    take("?");  // a lazy repetition matches the same texts
    p = grammar_.repeat(p, range->first, range->second);
  }
}

uint32_t RegexReader::hex(int least, int most) {
  const size_t begin = at_;
  uint32_t code = 0;
  int count = 0;
  for (; count < most && more() && hex_digit(pattern_[at_]) >= 0; ++count, ++at_)
    code = code << 4 | uint32_t(hex_digit(pattern_[at_]));
  if (count < least) refuse(begin, "expected {} hexadecimal digits, got {}", least, count);
  return code;
}

// \uXXXX, a pair of them for a code point beyond U+FFFF, \u{X..} or \x{X..}.
uint32_t RegexReader::unicode_escape() {
  const size_t begin = at_;
  uint32_t code = 0;
  if (take("{")) {
    code = hex(1, 6);
    if (!take("}")) refuse(begin, "expected }} after the digits");
  } else {
    code = hex(4, 4);
    if (code >= 0xd800 && code < 0xdc00 && take("\\u")) {
      const uint32_t low = hex(4, 4);
      if (low < 0xdc00 || low > 0xdfff) refuse(begin, "expected a pair of surrogates");
      code = 0x10000 + ((code & 0x3ff) << 10 | (low & 0x3ff));
    }
  }
  if (code > last_code || (code >= 0xd800 && code < 0xe000))
    refuse(begin, "expected a code point, got U+{:04X}", code);
  return code;
}

CodeSet RegexReader::escape(bool in_class) {
  const size_t begin = at_ - 1;
  if (!more()) refuse(begin, "expected a character after \\");
  const auto one = [](uint32_t code) { return CodeSet{{code, code}}; };
  const uint32_t c = take_code();
  switch (c) {
    case 'd':
      return digits;
    case 'D':
      return digits.complement();
    case 'w':
      return word;
    case 'W':
      return word.complement();
    case 's':
      return space;
    case 'S':
      return space.complement();
    case 'n':
      return one('\n');
    case 'r':
      return one('\r');
    case 't':
      return one('\t');
    case 'f':
      return one('\f');
    case 'v':
      return one('\v');
    case '0':
      return one(0);
    case 'x':
      return one(next_is("{") ? unicode_escape() : hex(2, 2));
    case 'u':
      return one(unicode_escape());
    case 'b':
      if (in_class) return one('\b');
      [[fallthrough]];
    case 'B':
      refuse(begin, "a word boundary (\\{}) is not supported", char(c));
    case 'p':
    case 'P':
      refuse(begin, "a Unicode property (\\{}) is not supported", char(c));
    default:
      break;
  }
  if (c >= '1' && c <= '9') refuse(begin, "a backreference (\\{}) is not supported", char(c));
  if (word.has(c)) refuse(begin, "expected a known escape, got \\{}", char(c));
  return one(c);
}

CodeSet RegexReader::bracket_item() {
  if (next_is("[:")) refuse(at_, "a POSIX class ([:name:]) is not supported");
  if (take("\\")) return escape(true);
  const uint32_t code = take_code();
  return CodeSet{{code, code}};
}

CodeSet RegexReader::bracket() {
  const size_t begin = at_ - 1;
  const bool inverts = take("^");
  std::vector<CodeRange> ranges;
  if (next_is("]")) refuse(begin, "expected a character in the class; write \\] for a bracket");
  const auto single = [](const CodeSet& s) {
    return s.ranges().size() == 1 && s.ranges()[0].first == s.ranges()[0].last;
  };
  while (!take("]")) {
    if (!more()) refuse(begin, "expected ] for this [, got the end of the pattern");
    const CodeSet low = bracket_item();
    if (!next_is("-") || next_is("-]") || at_ + 1 == pattern_.size()) {
      ranges.insert(ranges.end(), low.ranges().begin(), low.ranges().end());
      continue;
    }
    const size_t dash = at_++;
    const CodeSet high = bracket_item();
    if (!single(low) || !single(high) || low.ranges()[0].first > high.ranges()[0].first)
      refuse(dash, "expected a range from a lower to a higher character");
    ranges.push_back({low.ranges()[0].first, high.ranges()[0].first});
  }
  CodeSet set(std::move(ranges));
  if (inverts) set = set.complement();
  if (set.empty()) refuse(begin, "the class matches no character");
  return set;
}

}  // namespace

Phrase whole_regex(ByteGrammar& g, std::string_view pattern) {
  RegexReader reader(g, pattern, [&g](const CodeSet& set) { return g.set(set); });
  std::vector<Phrase> phrases;
  for (const Anchored& a : reader.all()) phrases.push_back(a.phrase);
  return g.choice(std::move(phrases));
}

Phrase search_regex(ByteGrammar& g, std::string_view pattern, const WriteClass& write) {
  const Phrase anything = g.repeat(write(CodeSet::all()), 0, -1);
  std::vector<Phrase> phrases;
  for (const Anchored& a : RegexReader(g, pattern, write).all()) {
    std::vector<Phrase> parts;
    if (!a.begins) parts.push_back(anything);
    parts.push_back(a.phrase);
    if (!a.ends) parts.push_back(anything);
    phrases.push_back(g.sequence(std::move(parts)));
  }
  return g.choice(std::move(phrases));
}

}  // namespace hearth::inline grammar
