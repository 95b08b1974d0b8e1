#include "grammar/json_phrases.h"

#include <algorithm>

#include "formats/json.h"
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
