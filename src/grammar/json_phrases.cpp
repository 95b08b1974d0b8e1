#include "grammar/json_phrases.h"

#include <algorithm>
#include <map>

#include "formats/json.h"
#include "grammar/regex_phrase.h"
#include "sys/error.h"

namespace hearth::inline grammar {
namespace {

// Characters that a string cannot contain as they are.
const CodeSet escaped{{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};

std::u32string codes_of(std::string_view text) {
  std::u32string codes;
  for (const char *p = text.data(), *end = p + text.size(); p < end;) {
    const Utf8Char c = read_utf8(p, end);
    codes += char32_t(c.code);
    p += c.length;
  }
  return codes;
}

std::string escape_of(uint32_t code) {
  switch (code) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    default:
      return fmt::format("\\u{:04x}", code);
  }
}

// How a string writes the characters of a set that it cannot contain as they are.
std::vector<std::string> escapes_of(const CodeSet& set) {
  std::vector<std::string> texts;
  for (const CodeRange& r : escaped.ranges())
    for (uint32_t code = r.first; code <= r.last; ++code)
      if (set.has(code)) texts.push_back(escape_of(code));
  return texts;
}

// Exact: days of months, leap years, hours up to 23. A time has a zone, as RFC 3339 demands.
const std::map<std::string, std::string>& format_patterns() {
  static const std::string day31 = "(0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])";
  static const std::string day30 = "(0[469]|11)-(0[1-9]|[12]\\d|30)";
  static const std::string leap =
      "(\\d\\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29";
  static const std::string date =
      "(\\d{4}-(" + day31 + "|" + day30 + "|02-(0[1-9]|1\\d|2[0-8]))|" + leap + ")";
  static const std::string time =
      "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)";
  static const std::string byte = "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
  static const std::string label = "[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?";
  static const std::map<std::string, std::string> all = {
      {"date", date},
      {"time", time},
      {"date-time", date + "T" + time},
      {"uuid", "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"},
      {"ipv4", byte + "(\\." + byte + "){3}"},
      {"email", "[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,32}){0,3}@(" + label +
                    "\\.){1,4}[a-z]([a-z0-9-]{0,30}[a-z0-9])?"}};
  return all;
}

}  // namespace

JsonPhrases::JsonPhrases(ByteGrammar& g) : g_(g) {
  const Phrase blank = g.choice({g.byte(' ', ' '), g.byte('\t', '\t')});
  space_ = g.rule_of(g.choice(
      {g.text(""), g.text(" "),
       g.sequence({g.repeat(g.text("\n"), 1, 2), g.repeat(g.call(g.rule_of(blank)), 0, 20)})}));
  // An escape of a surrogate is half a character, so it needs its other half.
  const auto hex = [&](const CodeSet& digits) { return g.set(digits); };
  const Phrase any = hex({{'0', '9'}, {'A', 'F'}, {'a', 'f'}});
  const Phrase d = hex({{'D', 'D'}, {'d', 'd'}});
  const Phrase plain = g.choice(
      {g.sequence({hex({{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}}), any}),
       g.sequence({d, hex({{'0', '7'}})})});
  const Phrase pair = g.sequence({d, hex({{'8', '9'}, {'A', 'B'}, {'a', 'b'}}), any, any,
                                  g.text("\\u"), d, hex({{'C', 'F'}, {'c', 'f'}})});
  const Phrase code = g.sequence(
      {g.text("u"), g.choice({g.sequence({plain, any, any}), g.sequence({pair, any, any})})});
  const Phrase sign = g.set({{'"', '"'},
                             {'/', '/'},
                             {'\\', '\\'},
                             {'b', 'b'},
                             {'f', 'f'},
                             {'n', 'n'},
                             {'r', 'r'},
                             {'t', 't'}});
  character_ = g.rule_of(
      g.choice({g.set(escaped.complement()), g.sequence({g.text("\\"), g.choice({sign, code})})}));
  escapes_ = g.rule_of(g.one_of(escapes_of(CodeSet::all())));
  anything_ = g.rule_of(g.repeat(written(CodeSet::all()), 0, -1));
  define_value();
}

void JsonPhrases::define_value() {
  value_ = g_.new_rule(), object_ = g_.new_rule(), array_ = g_.new_rule();
  const auto list = [&](const char* open, Phrase item, const char* close) {
    const Phrase more = g_.repeat(g_.sequence({comma(), item}), 0, -1);
    const Phrase items = g_.sequence({space(), item, more, space()});
    return g_.sequence({g_.text(open), g_.choice({space(), items}), g_.text(close)});
  };
  const Phrase string_value = string(0, -1);
  g_.define(object_, list("{", member(string_value, value()), "}"));
  g_.define(array_, list("[", value(), "]"));
  g_.define(value_, g_.choice({object(), array(), string_value, number({}), g_.text("true"),
                               g_.text("false"), g_.text("null")}));
}

Phrase JsonPhrases::string(int64_t least, int64_t most) {
  const auto [at, fresh] = strings_.try_emplace({least, most}, -1);
  if (fresh) at->second = g_.rule_of(quoted(g_.repeat(character(), least, most)));
  return g_.call(at->second);
}

Phrase JsonPhrases::member(Phrase key, Phrase value) {
  return g_.sequence({key, g_.text(":"), g_.optional(g_.text(" ")), value});
}

Phrase JsonPhrases::written(const CodeSet& set) {
  std::vector<Phrase> ways;
  if (const CodeSet plain = set.without(escaped); !plain.empty()) ways.push_back(g_.set(plain));
  if (escaped.without(set).empty()) {
    ways.push_back(g_.call(escapes_));
  } else if (std::vector<std::string> texts = escapes_of(set); !texts.empty()) {
    ways.push_back(g_.one_of(std::move(texts)));
  }
  return g_.choice(std::move(ways));
}

Phrase JsonPhrases::formatted(const std::string& format) {
  const auto found = format_patterns().find(format);
  if (found == format_patterns().end())
    fail_usage(g_.where(),
               "expected a format among date, time, date-time, uuid, email and ipv4, got {}",
               in_quotes(format));
  return quoted(g_.call(g_.rule_of(whole_regex(g_, found->second))));
}

Phrase JsonPhrases::string_except(std::vector<std::string> names) {
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  Codes codes;
  for (const std::string& n : names) codes.push_back(codes_of(n));
  std::ranges::sort(codes);
  return quoted(except(codes, 0, codes.size(), 0));
}

// What follows `skip` equal characters of names[begin, end) in a string that is none of them.
Phrase JsonPhrases::except(const Codes& names, size_t begin, size_t end, size_t skip) {
  std::vector<Phrase> ways;
  if (begin == end) return g_.call(anything_);
  if (names[begin].size() == skip)
    ++begin;  // this text is a name: it may not end here
  else
    ways.push_back(g_.text(""));
  std::vector<CodeRange> taken;
  for (size_t next = begin; begin < end; begin = next) {
    const uint32_t code = names[begin][skip];
    while (next < end && names[next][skip] == char32_t(code)) ++next;
    taken.push_back({code, code});
    const RuleId branch = g_.rule_of(except(names, begin, next, skip + 1));
    ways.push_back(g_.sequence({written(CodeSet{{code, code}}), g_.call(branch)}));
  }
  const CodeSet others = CodeSet(std::move(taken)).complement();
  ways.push_back(g_.sequence({written(others), g_.call(anything_)}));
  return g_.choice(std::move(ways));
}

Phrase JsonPhrases::literal(const nlohmann::ordered_json& value) { return g_.text(value.dump()); }

}  // namespace hearth::inline grammar
