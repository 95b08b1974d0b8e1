#include "grammar/tool_grammar.h"

#include "formats/json.h"
#include "grammar/json_schema.h"
#include "text/overlap.h"

namespace hearth::inline grammar {
namespace {

using ToolsJson = nlohmann::ordered_json;

// {"name": "f", "arguments": {..}} of one of the tools. Each schema is a root of its own.
Phrase calls_of(ByteGrammar& g, JsonPhrases& json, const ToolsJson& asked) {
  std::vector<Phrase> calls;
  for (const auto& tool : asked["tools"]) {
    const auto& name = tool["name"].get_ref<const std::string&>();
    const bool takes = tool.contains("parameters") && !tool["parameters"].empty();
    const Phrase arguments = takes ? SchemaPhrases(g, json, tool["parameters"],
                                                   fmt::format("{} {}", g.where(), in_quotes(name)))
                                         .root()
                                   : g.text("{}");
    const std::string head =
        fmt::format("{{\"name\": {}, {}: ", tool["name"].dump(), asked["key"].dump());
    calls.push_back(g.sequence({g.text(head), arguments, g.text("}")}));
  }
  return g.choice(std::move(calls));
}

// One byte of each range, and what follows it: after(byte), which is equal for neighbours in a
// range.
template <class After, class Follow>
void add_bytes(ByteGrammar& g, std::vector<Phrase>& ways, After&& after, Follow&& follow) {
  for (int b = 0; b < 256; ++b) {
    const int first = b, next = after(uint8_t(first));
    while (b < 255 && after(uint8_t(b + 1)) == next) ++b;
    if (next >= 0) ways.push_back(g.sequence({g.byte(uint8_t(first), uint8_t(b)), follow(next)}));
  }
}

// Any text; where it has the opening word, a call and the closing word follow. Rule k is the rest
// of a text whose last k bytes are the beginning of the opening.
Phrase text_with_calls(ByteGrammar& g, JsonPhrases& json, Phrase call, const ToolsJson& how) {
  const std::string opening = how["opening"], closing = how["closing"];
  std::vector<RuleId> rules;
  for (size_t k = 0; k < opening.size(); ++k) rules.push_back(g.new_rule());
  std::vector<Phrase> parts{json.space(), call, json.space(), g.text(closing)};
  if (how["parallel"].get<bool>()) parts.push_back(g.call(rules[0]));
  const Phrase opened = g.sequence(std::move(parts));
  for (size_t k = 0; k < rules.size(); ++k) {
    std::vector<Phrase> ways{g.text("")};
    const auto after = [&](uint8_t b) {
      const std::string read = opening.substr(0, k) + char(b);
      return int(read == opening ? read.size() : overlap(read, opening));
    };
    add_bytes(g, ways, after, [&](int next) {
      return size_t(next) == rules.size() ? opened : g.call(rules[size_t(next)]);
    });
    g.define(rules[k], g.choice(std::move(ways)));
  }
  return g.call(rules[0]);
}

// A call, which a tag may precede, or any text that begins with neither; white space may come
// first.
Phrase text_or_call(ByteGrammar& g, Phrase call, const std::string& tag) {
  const auto is_blank = [](uint8_t b) { return b == ' ' || b == '\t' || b == '\r' || b == '\n'; };
  const RuleId begin = g.new_rule();
  const Phrase any = g.call(g.rule_of(g.repeat(g.byte(0, 255), 0, -1)));
  Phrase rest = g.sequence(
      {g.repeat(g.choice({g.byte('\t', '\n'), g.byte('\r', '\r'), g.byte(' ', ' ')}), 0, -1),
       call});  // after the tag
  for (size_t k = tag.size(); k-- > 1;) {
    std::vector<Phrase> ways{g.text("")};
    add_bytes(
        g, ways, [&](uint8_t b) { return int(b == uint8_t(tag[k])); },
        [&](int in_tag) { return in_tag ? rest : any; });
    rest = g.call(g.rule_of(g.choice(std::move(ways))));
  }
  std::vector<Phrase> ways{g.text(""), call};
  const auto first = [&](uint8_t b) {
    return is_blank(b) ? 0 : b == uint8_t(tag[0]) ? 1 : b == '{' ? -1 : 2;
  };
  add_bytes(g, ways, first, [&](int kind) {
    return kind == 0 ? g.call(begin) : kind == 1 ? rest : any;
  });
  g.define(begin, g.choice(std::move(ways)));
  return g.call(begin);
}

}  // namespace

ByteGrammar tools_grammar(const ToolsJson& asked, const std::string& where) {
  ByteGrammar g(where);
  JsonPhrases json(g);
  const Phrase call = g.call(g.rule_of(calls_of(g, json, asked)));
  const auto how = asked.find("text");
  g.set_root(how == asked.end() ? call
             : how->at("closing").get<std::string>().empty()
                 ? text_or_call(g, call, how->at("opening"))
                 : text_with_calls(g, json, call, *how));
  return g;
}

}  // namespace hearth::inline grammar
