// SchemaPhrases of objects, arrays, strings and numbers, and the grammars of whole answers.
#include <algorithm>
#include <cmath>
#include <set>

#include "grammar/json_schema.h"
#include "grammar/regex_phrase.h"
#include "grammar/string_formats.h"
#include "grammar/string_match.h"

namespace hearth::inline grammar {
namespace {

using Json = nlohmann::ordered_json;

constexpr double most_bound = 1e18;  // of a minimum or maximum
constexpr size_t most_name = 1024;   // code points of a property's name: a part of the grammar each

size_t code_points(std::string_view text) {
  return size_t(std::ranges::count_if(text, [](char c) { return (uint8_t(c) & 0xc0) != 0x80; }));
}

struct Member {
  Phrase written;  // key, colon and value
  bool required;
};

}  // namespace

// The name of a property that propertyNames describes.
Phrase SchemaPhrases::name(const Json& s, const std::string& path) {
  const Json& names = followed(s);
  if (names == true) return json_.string_except({});
  if (!names.is_object()) refuse(path, "expected a schema, got {}", names.type_name());
  allow_only(names, {"type", "enum", "const", "pattern", "format", "minLength", "maxLength"}, path);
  Json texts = names;
  if (!texts.contains("type")) texts["type"] = "string";
  if (texts["type"] != "string") refuse(path, "expected names of properties to be of type string");
  return schema(merged_.emplace_back(std::move(texts)), path);
}

// An object that declares no properties. A name may come twice, so several members need not be
// several properties.
Phrase SchemaPhrases::dictionary(const Json& s, const std::string& path) {
  static const Json anything = true;
  Phrase key = -1, value = -1;
  if (s.contains("patternProperties")) {
    const Json& all = s["patternProperties"];
    const bool others = s.contains("additionalProperties") && s["additionalProperties"] != false;
    if (!all.is_object() || all.size() != 1 || others || s.contains("propertyNames"))
      refuse(path,
             "patternProperties is supported with one pattern, and without other properties "
             "or propertyNames");
    const std::string& pattern = all.begin().key();
    key = located(path, [&] { return matching_string(g_, json_, {.patterns = {pattern}}); });
    value = schema(*all.begin(), path + "/patternProperties/" + pattern);
  } else {
    const Json& more = s.contains("additionalProperties") ? s["additionalProperties"] : anything;
    key = s.contains("propertyNames") ? name(s["propertyNames"], path + "/propertyNames")
                                      : json_.string_except({});
    value = schema(more, path + "/additionalProperties");
  }
  const int64_t least = count(s, "minProperties", 0, path);
  const int64_t most = count(s, "maxProperties", -1, path);
  if (least > 1) refuse(path, "minProperties is supported up to 1 without properties");
  if (most >= 0 && least > most)
    refuse(path, "expected at least {} properties, which is more than the maximum of {}", least,
           most);
  const Phrase member = g_.call(g_.rule_of(json_.member(key, value)));
  const Phrase close = g_.sequence({json_.space(), g_.text("}")});
  const Phrase more = g_.repeat(g_.sequence({json_.comma(), member}), 0, most < 0 ? -1 : most - 1);
  std::vector<Phrase> ways;
  if (least == 0) ways.push_back(close);
  if (most != 0) ways.push_back(g_.sequence({json_.space(), member, more, close}));
  return g_.sequence({g_.text("{"), g_.choice(std::move(ways))});
}

SchemaPhrases::Names SchemaPhrases::names_of(const Json& properties, const Json& required,
                                             bool open, const std::string& path) {
  Names names;
  for (const auto& [name, value] : properties.items()) names.all.push_back(name);
  for (const Json& name : required) {
    if (!name.is_string()) refuse(path, "expected required to be a list of names");
    if (!names.required.insert(name.get<std::string>()).second) continue;
    if (member(properties, name.get<std::string>())) continue;
    if (!open) refuse(path, "required names {}, which properties lacks", in_quotes(name.dump()));
    names.all.push_back(name.get<std::string>());
  }
  for (const std::string& name : names.all)
    if (const size_t n = code_points(name); n > most_name)
      refuse(path, "expected names of properties of at most {} characters, got one of {}",
             most_name, n);
  return names;
}

// Members come in declared order, then others if the schema allows them. Each rule is the rest of
// the object from one member on: `first` if nothing was written yet, else `later`.
Phrase SchemaPhrases::object(const Json& s, const std::string& path) {
  static const Json none = Json::object(), nothing = Json::array(), anything = true;
  const auto at = [&](const char* key, const Json& otherwise) -> const Json& {
    return s.contains(key) ? s[key] : otherwise;
  };
  const Json &properties = at("properties", none), &required = at("required", nothing);
  if (!properties.is_object()) refuse(path, "expected properties to be an object");
  if (!required.is_array()) refuse(path, "expected required to be a list of names");
  // A schema that declares properties has no others unless it asks for them.
  const bool declares = !properties.empty() || !required.empty();
  const Json& more = at("additionalProperties", anything);
  const bool open = s.contains("additionalProperties") ? more != false : !declares;
  const bool patterns = s.contains("patternProperties");
  if (!declares && (open || patterns)) return dictionary(s, path);
  for (const char* keyword : {"patternProperties", "propertyNames"})
    if (s.contains(keyword))
      refuse(path,
             "{} is supported only without properties, required and a false "
             "additionalProperties",
             keyword);
  const Names names = names_of(properties, required, open, path);
  if (count(s, "minProperties", 0, path) > int64_t(names.required.size()) ||
      (s.contains("maxProperties") &&
       (open || count(s, "maxProperties", 0, path) < int64_t(names.all.size()))))
    refuse(path,
           "minProperties and maxProperties beside properties are supported only where "
           "required and properties imply them");
  const Phrase other =
      open ? g_.call(g_.rule_of(schema(more, path + "/additionalProperties"))) : -1;
  std::vector<Member> members;
  for (const std::string& name : names.all) {
    const Json* own = member(properties, name);
    const Phrase value = own ? schema(*own, path + "/properties/" + name) : other;
    members.push_back({json_.member(json_.literal(name), value), names.required.contains(name)});
  }
  const Phrase close = g_.sequence({json_.space(), g_.text("}")});
  RuleId first = g_.rule_of(close), later = first;
  if (open) {
    const Phrase extra = g_.call(g_.rule_of(json_.member(json_.string_except(names.all), other)));
    const Phrase rest = g_.repeat(g_.sequence({json_.comma(), extra}), 0, -1);
    later = g_.rule_of(g_.sequence({rest, close}));
    first = g_.rule_of(g_.choice({close, g_.sequence({json_.space(), extra, g_.call(later)})}));
  }
  for (size_t i = members.size(); i-- > 0;) {
    const Member& own = members[i];
    const auto rest = [&](Phrase before, RuleId skipped) {
      const Phrase with = g_.sequence({before, own.written, g_.call(later)});
      return g_.rule_of(own.required ? with : g_.choice({with, g_.call(skipped)}));
    };
    const RuleId begun = rest(json_.space(), first);
    later = rest(json_.comma(), later);
    first = begun;
  }
  return g_.sequence({g_.text("{"), g_.call(first)});
}

Phrase SchemaPhrases::array(const Json& s, const std::string& path) {
  static const Json anything = true, nothing = Json::array();
  const Json& prefix = s.contains("prefixItems") ? s["prefixItems"] : nothing;
  if (!prefix.is_array()) refuse(path, "expected prefixItems to be a list of schemas");
  const int64_t fixed = int64_t(prefix.size());
  const int64_t least = count(s, "minItems", 0, path);
  int64_t most = count(s, "maxItems", -1, path);
  const bool given = s.contains("items");
  const Json& items = given ? s["items"] : anything;
  // Beside prefixItems there are others only where they are asked for.
  const bool open = given ? items != false : fixed == 0 || least > fixed;
  if (!open) most = most < 0 ? fixed : std::min(most, fixed);
  if (most >= 0 && least > most)
    refuse(path, "expected at least {} items, which is more than the maximum of {}", least, most);
  const Phrase item = open ? g_.call(g_.rule_of(schema(items, path + "/items"))) : -1;
  const Phrase close = g_.sequence({json_.space(), g_.text("]")});
  // From the end: what follows when j items were written.
  const auto left = [&](int64_t limit, int64_t j) {
    return limit < 0 ? -1 : std::max<int64_t>(limit - j, 0);
  };
  const int64_t last = std::max<int64_t>(fixed, 1);
  RuleId rest = g_.rule_of(close);
  if (open && (most < 0 || most > last)) {
    const Phrase more = g_.sequence({json_.comma(), item});
    rest = g_.rule_of(
        g_.sequence({g_.repeat(more, left(std::max(least, last), last), left(most, last)), close}));
  }
  for (int64_t j = last; j-- > 0;) {
    std::vector<Phrase> ways;
    if (j >= least) ways.push_back(close);
    if ((most < 0 || j < most) && (j < fixed || open)) {
      const Phrase next =
          j < fixed ? schema(prefix[size_t(j)], fmt::format("{}/prefixItems/{}", path, j)) : item;
      ways.push_back(g_.sequence({j > 0 ? json_.comma() : json_.space(), next, g_.call(rest)}));
    }
    rest = g_.rule_of(g_.choice(std::move(ways)));
  }
  return g_.sequence({g_.text("["), g_.call(rest)});
}

Phrase SchemaPhrases::string(const Json& s, const std::string& path) {
  StringMatch m{.least = count(s, "minLength", 0, path), .most = count(s, "maxLength", -1, path)};
  if (m.most >= 0 && m.least > m.most)
    refuse(path, "expected maxLength of at least minLength, got {} and {}", m.most, m.least);
  const auto text = [&](const char* keyword) {
    if (!s[keyword].is_string()) refuse(path, "expected {} to be text", keyword);
    return s[keyword].get<std::string>();
  };
  if (s.contains("pattern")) m.patterns.push_back(text("pattern"));
  if (s.contains("format")) {
    const bool bounded = m.most >= 0 && m.most < longest_format;
    const std::string format = text("format"), *pattern = format_pattern(format, bounded);
    if (!pattern)
      refuse(path, "expected a format among {}, got {}", known_formats(), in_quotes(format));
    m.patterns.push_back("^(?:" + *pattern + ")$");
  }
  if (m.patterns.empty()) return json_.string(m.least, m.most);
  return located(path, [&] { return matching_string(g_, json_, m); });
}

NumberBounds SchemaPhrases::bounds(const Json& s, const std::string& path) {
  NumberBounds b;
  const auto read = [&](const char* keyword, auto&& use) {
    const auto found = s.find(keyword);
    if (found == s.end()) return;
    if (!found->is_number() || std::abs(found->get<double>()) > most_bound)
      refuse(path, "expected {} to be a number of at most 1e18 in size", keyword);
    use(decimal_of(*found));
  };
  read("minimum", [&](const Decimal& d) { b.least.push_back({d, false}); });
  read("exclusiveMinimum", [&](const Decimal& d) { b.least.push_back({d, true}); });
  read("maximum", [&](const Decimal& d) { b.most.push_back({d, false}); });
  read("exclusiveMaximum", [&](const Decimal& d) { b.most.push_back({d, true}); });
  read("multipleOf", [&](const Decimal& d) {
    if (d.mantissa <= 0) refuse(path, "expected multipleOf to be more than 0");
    b.multiple = d;
  });
  return b;
}

ByteGrammar regex_grammar(std::string_view pattern, std::string where) {
  ByteGrammar g(std::move(where));
  g.set_root(whole_regex(g, pattern));
  return g;
}

ByteGrammar schema_grammar(const Json& schema, std::string where) {
  ByteGrammar g(where);
  JsonPhrases json(g);
  g.set_root(SchemaPhrases(g, json, schema, std::move(where)).root());
  return g;
}

ByteGrammar any_object_grammar(std::string where) {
  ByteGrammar g(std::move(where));
  g.set_root(JsonPhrases(g).object());
  return g;
}

}  // namespace hearth::inline grammar
