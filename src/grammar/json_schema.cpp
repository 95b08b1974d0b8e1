#include "grammar/json_schema.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "formats/json.h"
#include "grammar/regex_phrase.h"
#include "sys/error.h"

namespace hearth::inline grammar {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t most_one_of = 256;          // schemas, because all pairs are compared
constexpr size_t most_compared = 1'000'000;  // values, names and types, over all pairs
constexpr size_t most_searched = 16;         // members of an object without an index

const std::set<std::string_view> annotations = {
    "title",   "description",   "default",         "examples",        "$schema",  "$comment",
    "$id",     "$defs",         "definitions",     "deprecated",      "readOnly", "writeOnly",
    "example", "discriminator", "contentEncoding", "contentMediaType"};
const std::set<std::string_view> types = {"object",  "array",   "string", "number",
                                          "integer", "boolean", "null"};

// The type that a keyword speaks about.
std::string_view type_of_keyword(std::string_view keyword) {
  static const std::map<std::string_view, std::string_view> all = {
      {"properties", "object"},
      {"required", "object"},
      {"additionalProperties", "object"},
      {"patternProperties", "object"},
      {"propertyNames", "object"},
      {"minProperties", "object"},
      {"maxProperties", "object"},
      {"items", "array"},
      {"prefixItems", "array"},
      {"minItems", "array"},
      {"maxItems", "array"},
      {"minLength", "string"},
      {"maxLength", "string"},
      {"pattern", "string"},
      {"format", "string"},
      {"minimum", "number"},
      {"maximum", "number"},
      {"exclusiveMinimum", "number"},
      {"exclusiveMaximum", "number"},
      {"multipleOf", "number"}};
  const auto found = all.find(keyword);
  return found == all.end() ? "" : found->second;
}

std::string type_of_value(const Json& v) {
  if (v.is_number_integer()) return "integer";
  if (v.is_number()) return v.get<double>() == std::floor(v.get<double>()) ? "integer" : "number";
  return v.is_boolean() ? "boolean" : v.type_name();
}

using Types = std::set<std::string, std::less<>>;

bool have(const Types& types, const Json& value) {
  const std::string own = type_of_value(value);
  return types.contains(own) || (own == "integer" && types.contains("number"));
}

// Those that the schema names; what is no text is left out.
Types named_types(const Json& s) {
  Types all;
  const auto type = s.find("type");
  if (type == s.end()) return all;
  if (type->is_string()) all.insert(type->get<std::string>());
  if (type->is_array())
    for (const Json& t : *type)
      if (t.is_string()) all.insert(t.get<std::string>());
  return all;
}

bool lists_constants(const Json& s) {
  return s.contains("const") || (s.contains("enum") && s["enum"].is_array());
}

std::vector<const Json*> constant_values(const Json& s) {
  if (s.contains("const")) return {&s["const"]};
  std::vector<const Json*> all;
  for (const Json& v : s["enum"]) all.push_back(&v);
  return all;
}

std::string pointer_part(std::string part) {
  std::string out;
  for (size_t i = 0; i < part.size(); ++i) {
    if (part[i] == '~' && i + 1 < part.size() && (part[i + 1] == '0' || part[i + 1] == '1'))
      out += part[++i] == '0' ? '~' : '/';
    else
      out += part[i];
  }
  return out;
}

}  // namespace

bool is_annotation(std::string_view keyword) { return annotations.contains(keyword); }

ErrorParts parts_of(const Error& e, std::string_view begin) {
  const std::string_view text = e.what();
  const size_t end = text.find("] ", 1 + begin.size());
  if (text.substr(1, begin.size()) != begin || end == text.npos)
    return {std::string(begin), std::string(text)};
  return {std::string(text.substr(1, end - 1)), std::string(text.substr(end + 2))};
}

SchemaPhrases::SchemaPhrases(ByteGrammar& g, JsonPhrases& json, const Json& root, std::string where)
    : g_(g), json_(json), root_(root), where_(std::move(where)) {}

void SchemaPhrases::allow_only(const Json& s, std::initializer_list<const char*> known,
                               const std::string& path) const {
  for (const auto& [key, value] : s.items())
    if (!is_annotation(key) && std::ranges::find(known, std::string_view(key)) == known.end())
      refuse(path, "the keyword {} is not supported here", in_quotes(key));
}

int64_t SchemaPhrases::count(const Json& s, const char* keyword, int64_t otherwise,
                             const std::string& path) const {
  const auto found = s.find(keyword);
  if (found == s.end()) return otherwise;
  const double n = found->is_number() ? found->get<double>() : -1;
  if (n < 0 || n != std::floor(n) || n > double(most_repeats))
    refuse(path, "expected {} to be a whole number from 0 to {}, got {}", keyword, most_repeats,
           in_quotes(found->dump()));
  return int64_t(n);
}

// A schema of any kind. Each kind names the keywords that it knows; others are refused.
Phrase SchemaPhrases::schema(const Json& s, const std::string& path) {
  if (s.is_boolean() && s.get<bool>()) return json_.value();
  if (!s.is_object())
    refuse(path, "expected a schema, got {}", s.is_boolean() ? "false" : s.type_name());
  if (++depth_ > most_nested) refuse(path, "expected at most {} nested schemas", most_nested);
  Phrase p = -1;
  if (s.contains("allOf")) {
    p = schema(merged_.emplace_back(all_of(s, path)), path);
  } else if (s.contains("$ref")) {
    p = reference(s, path);
  } else if (s.contains("enum") || s.contains("const")) {
    p = constants(s, path);
  } else if (s.contains("anyOf")) {
    p = alternatives(s, "anyOf", path);
  } else if (s.contains("oneOf")) {
    p = alternatives(s, "oneOf", path);
  } else {
    p = by_type(s, path);
  }
  --depth_;
  return p;
}

Phrase SchemaPhrases::by_type(const Json& s, const std::string& path) {
  const auto idle = [](const std::string& key, const Json& value) {
    return (key == "uniqueItems" || key == "nullable") && value == false;
  };
  for (const auto& [key, value] : s.items())
    if (key != "type" && !is_annotation(key) && type_of_keyword(key).empty() && !idle(key, value))
      refuse(path, "the keyword {} is not supported", in_quotes(key));
  std::vector<std::string> wanted;
  if (const auto type = s.find("type"); type != s.end()) {
    for (const Json& t : type->is_array() ? *type : Json::array({*type})) {
      if (!t.is_string() || !types.contains(t.get_ref<const std::string&>()))
        refuse(path, "expected a type of JSON, got {}", in_quotes(t.dump()));
      wanted.push_back(t.get<std::string>());
    }
    if (wanted.empty()) refuse(path, "expected at least one type, got none");
  } else {  // the keywords tell it; a schema without keywords is any value
    for (const auto& [key, value] : s.items())
      if (const std::string_view t = type_of_keyword(key);
          !t.empty() && std::ranges::find(wanted, t) == wanted.end())
        wanted.emplace_back(t);
  }
  std::vector<Phrase> ways;
  for (const std::string& t : wanted) ways.push_back(typed(s, t, path));
  return ways.empty() ? json_.value() : g_.choice(std::move(ways));
}

Phrase SchemaPhrases::typed(const Json& s, const std::string& type, const std::string& path) {
  if (type == "object") return object(s, path);
  if (type == "array") return array(s, path);
  if (type == "string") return string(s, path);
  if (type == "number" || type == "integer") {
    const NumberBounds b = bounds(s, path);
    return located(path, [&] { return type == "number" ? json_.number(b) : json_.integer(b); });
  }
  if (type == "boolean") return g_.one_of({"true", "false"});
  return g_.text("null");
}

// --- references ---

const Json* SchemaPhrases::member(const Json& object, const std::string& name) {
  if (object.size() <= most_searched) {
    const auto found = object.find(name);
    return found == object.end() ? nullptr : &*found;
  }
  const auto [at, fresh] = indexes_.try_emplace(&object);
  if (fresh)
    for (auto i = object.begin(); i != object.end(); ++i) at->second.emplace(i.key(), &*i);
  const auto found = at->second.find(name);
  return found == at->second.end() ? nullptr : found->second;
}

const Json& SchemaPhrases::resolve(const std::string& reference, const std::string& path) {
  if (!reference.starts_with('#'))
    refuse(path, "expected a $ref within the schema (#/..), got {}", in_quotes(reference));
  const Json* at = &root_;
  size_t begin = 1;
  while (begin < reference.size()) {
    if (reference[begin] != '/')
      refuse(path, "expected a $ref such as #/$defs/name, got {}", in_quotes(reference));
    const size_t end = std::min(reference.find('/', begin + 1), reference.size());
    const std::string part = pointer_part(reference.substr(begin + 1, end - begin - 1));
    const bool index = at->is_array() && !part.empty() && part.size() < 6 &&
                       part.find_first_not_of("0123456789") == std::string::npos;
    if (const Json* found = at->is_object() ? member(*at, part) : nullptr)
      at = found;
    else if (index && size_t(std::stoi(part)) < at->size())
      at = &(*at)[size_t(std::stoi(part))];
    else
      refuse(path, "the $ref {} points to nothing", in_quotes(reference));
    begin = end;
  }
  return *at;
}

Phrase SchemaPhrases::reference(const Json& s, const std::string& path) {
  allow_only(s, {"$ref"}, path);
  if (!s["$ref"].is_string()) refuse(path, "expected $ref to be text");
  const std::string name = s["$ref"];
  const Json& to = resolve(name, path);
  const auto [at, fresh] = rules_.try_emplace(&to, -1);
  if (fresh) {
    const RuleId rule = at->second = g_.new_rule();
    g_.define(rule, schema(to, name.substr(1)));
    return g_.call(rule);
  }
  return g_.call(at->second);
}

// --- choices ---

Phrase SchemaPhrases::constants(const Json& s, const std::string& path) {
  allow_only(s, {"enum", "const", "type"}, path);
  if (!s.contains("const") && (!s["enum"].is_array() || s["enum"].empty()))
    refuse(path, "expected enum to be a list of at least one value");
  const Types wanted = named_types(s);
  std::vector<std::string> texts;
  for (const Json* v : constant_values(s)) {
    bool fits = !s.contains("type") || have(wanted, *v);
    if (s.contains("const") && s.contains("enum"))
      fits &= s["enum"].is_array() && std::ranges::find(s["enum"], *v) != s["enum"].end();
    if (fits) texts.push_back(v->dump());
  }
  if (texts.empty()) refuse(path, "no value of enum or const has the type");
  return g_.one_of(std::move(texts));
}

Phrase SchemaPhrases::alternatives(const Json& s, const char* keyword, const std::string& path) {
  allow_only(s, {keyword}, path);
  const Json& all = s[keyword];
  if (!all.is_array() || all.empty())
    refuse(path, "expected {} to be a list of at least one schema", keyword);
  if (std::string_view(keyword) == "oneOf") {
    if (all.size() > most_one_of)
      refuse(path, "expected at most {} schemas in oneOf, got {}: use anyOf", most_one_of,
             all.size());
    for (size_t i = 0; i < all.size(); ++i)
      for (size_t j = 0; j < i; ++j)
        if (!disjoint(all[i], all[j], 0))
          refuse(path, "schemas {} and {} of oneOf may match the same value: use anyOf", j, i);
  }
  std::vector<Phrase> ways;
  for (size_t i = 0; i < all.size(); ++i)
    ways.push_back(schema(all[i], fmt::format("{}/{}/{}", path, keyword, i)));
  return g_.choice(std::move(ways));
}

void SchemaPhrases::compare(size_t values) {
  compared_ += values;
  if (compared_ > most_compared)
    fail_usage(where_,
               "telling the schemas of oneOf apart takes more than {} comparisons: use anyOf",
               most_compared);
}

const Json& SchemaPhrases::followed(const Json& s) {
  const Json* at = &s;
  for (int i = 0;
       i < most_nested && at->is_object() && at->contains("$ref") && (*at)["$ref"].is_string();
       ++i) {
    const auto& to = (*at)["$ref"].get_ref<const std::string&>();
    compare(1 + to.size() / 64);
    at = &resolve(to, "");
  }
  return *at;
}

bool SchemaPhrases::disjoint_constants(const Json& a, const Json& b) {
  const std::vector<const Json*> ours = constant_values(a), theirs = constant_values(b);
  compare(ours.size());
  std::vector<size_t> sizes;  // in comparisons
  for (const Json* v : theirs) {
    sizes.push_back(1 + v->dump().size() / 64);
    compare(sizes.back());
  }
  for (const Json* v : ours)
    for (size_t i = 0; i < theirs.size(); ++i) {
      compare(sizes[i]);
      if (*v == *theirs[i]) return false;
    }
  return true;
}

// Whether a property that both must have has values that differ.
bool SchemaPhrases::disjoint_properties(const Json& a, const Json& b, int depth) {
  const auto properties = [](const Json& s) {
    const auto found = s.find("properties");
    return found != s.end() && found->is_object() ? &*found : nullptr;
  };
  const auto demanded = [this](const Json& s) {
    std::set<std::string_view> names;
    const auto found = s.find("required");
    if (found == s.end() || !found->is_array()) return names;
    compare(found->size());
    for (const Json& name : *found)
      if (name.is_string()) names.insert(name.get_ref<const std::string&>());
    return names;
  };
  const Json *ours = properties(a), *theirs = properties(b);
  if (!ours || !theirs) return false;
  const std::set<std::string_view> mine = demanded(a), other = demanded(b);
  for (const std::string_view name : mine) {
    if (!other.contains(name)) continue;
    compare(1);
    const Json *first = member(*ours, std::string(name)),
               *second = member(*theirs, std::string(name));
    if (first && second && disjoint(*first, *second, depth + 1)) return true;
  }
  return false;
}

bool SchemaPhrases::disjoint(const Json& first, const Json& second, int depth) {
  const Json &a = followed(first), &b = followed(second);
  if (depth > 4 || !a.is_object() || !b.is_object()) return false;
  compare(1);
  if (lists_constants(a) && lists_constants(b)) return disjoint_constants(a, b);
  const auto types_of = [this](const Json& s) {
    if (const auto type = s.find("type"); type != s.end()) compare(type->size());
    if (!lists_constants(s)) return named_types(s);
    Types all;
    const std::vector<const Json*> values = constant_values(s);
    compare(values.size());
    for (const Json* v : values) all.insert(type_of_value(*v));
    return all;
  };
  const Types ta = types_of(a), tb = types_of(b);
  const auto meets = [&](const std::string& type) {
    return tb.contains(type) || (type == "integer" && tb.contains("number")) ||
           (type == "number" && tb.contains("integer"));
  };
  compare(ta.size() + tb.size());
  if (!ta.empty() && !tb.empty() && std::ranges::none_of(ta, meets)) return true;
  // Objects may be told apart by a property.
  return ta == Types{"object"} && tb == ta && disjoint_properties(a, b, depth);
}

}  // namespace hearth::inline grammar
