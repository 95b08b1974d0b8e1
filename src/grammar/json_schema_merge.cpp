// allOf of SchemaPhrases: schemas that all hold become one schema.
#include <algorithm>

#include "grammar/json_schema.h"

namespace hearth::inline grammar {
namespace {

using MergedJson = nlohmann::ordered_json;

constexpr size_t most_copied = 16 << 20;  // bytes of schemas that are merged

bool is_closed(const MergedJson& s) {
  return s.contains("additionalProperties") && s["additionalProperties"] != true;
}

// Whether b declares every property that a declares.
bool declares_all(const MergedJson& a, const MergedJson& b) {
  if (!a.contains("properties")) return true;
  for (const auto& [name, value] : a["properties"].items())
    if (!b.contains("properties") || !b["properties"].contains(name)) return false;
  return true;
}

MergedJson common_types(const MergedJson& a, const MergedJson& b) {
  const auto list = [](const MergedJson& t) { return t.is_array() ? t : MergedJson::array({t}); };
  MergedJson all = MergedJson::array();
  for (const MergedJson& x : list(a))
    for (const MergedJson& y : list(b)) {
      const bool narrower = x == "integer" && y == "number";
      if (x == y || narrower)
        all.push_back(x);
      else if (x == "number" && y == "integer")
        all.push_back(y);
    }
  return all;
}

}  // namespace

SchemaPhrases::Json SchemaPhrases::all_of(const Json& s, const std::string& path) {
  if (!s["allOf"].is_array() || s["allOf"].empty())
    refuse(path, "expected allOf to be a list of at least one schema");
  if (++depth_ > most_nested) refuse(path, "expected at most {} nested schemas", most_nested);
  Json all = Json::object();
  for (const auto& [key, value] : s.items())
    if (key != "allOf") all[key] = value;
  for (size_t i = 0; i < s["allOf"].size(); ++i) {
    const std::string at = fmt::format("{}/allOf/{}", path, i);
    const Json& only = s["allOf"][i];
    // A reference that nothing is merged with stays one, so that it may recurse.
    const bool alone = s["allOf"].size() == 1 && only.is_object() &&
                       std::ranges::all_of(
                           all.items(), [](const auto& item) { return is_annotation(item.key()); });
    const Json& part = alone ? only : followed(only);
    if (part == true) continue;
    copied_ += most_nested + part.dump().size();
    if (copied_ > most_copied)
      refuse(at, "the schemas of allOf have more than {} bytes together", most_copied);
    if (!part.is_object()) refuse(at, "expected a schema, got {}", part.type_name());
    if (part.contains("allOf"))
      merge(all, all_of(part, at), at);
    else
      merge(all, part, at);
  }
  --depth_;
  return all;
}

// What both demand, as far as keywords can say it.
void SchemaPhrases::merge(Json& into, const Json& s, const std::string& path) const {
  if ((is_closed(s) && !declares_all(into, s)) || (is_closed(into) && !declares_all(s, into)))
    refuse(path, "additionalProperties is supported in allOf only beside the same properties");
  for (const auto& [key, value] : s.items()) {
    if (!into.contains(key)) {
      into[key] = value;
      continue;
    }
    Json& own = into[key];
    if (own == value || is_annotation(key)) continue;
    const bool numbers = own.is_number() && value.is_number();
    if ((key == "additionalProperties" || key == "items") && (own == true || value == true)) {
      if (own == true) own = value;
    } else if (key == "type") {
      own = common_types(own, value);
    } else if (key == "properties" && own.is_object() && value.is_object()) {
      for (const auto& [name, more] : value.items())
        own[name] = own.contains(name) && own[name] != more
                        ? Json{{"allOf", Json::array({own[name], more})}}
                        : more;
    } else if (key == "required" && own.is_array() && value.is_array()) {
      own.insert(own.end(), value.begin(), value.end());
    } else if (numbers && (key.starts_with("min") || key == "exclusiveMinimum")) {
      own = own < value ? value : own;
    } else if (numbers && (key.starts_with("max") || key == "exclusiveMaximum")) {
      own = value < own ? value : own;
    } else {
      refuse(path, "allOf is not supported with two different values of {}", in_quotes(key));
    }
  }
}

}  // namespace hearth::inline grammar
