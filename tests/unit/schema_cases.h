// Random JSON schemas and a validator that shares no code with the grammars.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>

#include "text/tokenizer/unicode.h"

namespace hearth {

using SchemaJson = nlohmann::ordered_json;

// Whether a value matches a schema of the keywords that random_schema() writes.
class SchemaJudge {
 public:
  explicit SchemaJudge(const SchemaJson& root) : root_(root) {}
  bool fits(const SchemaJson& v) const { return fits(root_, v); }

 private:
  bool fits(const SchemaJson& s, const SchemaJson& v) const {
    if (s.is_boolean()) return s.get<bool>();
    if (s.contains("$ref"))
      return fits(root_.at(SchemaJson::json_pointer(s["$ref"].get<std::string>().substr(1))), v);
    if (s.contains("const") && v != s["const"]) return false;
    if (s.contains("enum")) {
      bool any = false;
      for (const auto& e : s["enum"]) any |= e == v;
      if (!any) return false;
    }
    for (const char* key : {"anyOf", "oneOf"}) {
      if (!s.contains(key)) continue;
      int count = 0;
      for (const auto& a : s[key]) count += fits(a, v);
      if (count == 0 || (std::string(key) == "oneOf" && count != 1)) return false;
    }
    if (s.contains("type")) {
      bool any = false;
      for (const auto& t : s["type"].is_array() ? s["type"] : SchemaJson::array({s["type"]}))
        any |= has_type(v, t);
      if (!any) return false;
    }
    if (v.is_object()) return object_fits(s, v);
    if (v.is_array()) return array_fits(s, v);
    if (v.is_number()) return number_fits(s, v.get<double>());
    if (v.is_string()) return string_fits(s, v.get<std::string>());
    return true;
  }
  static bool has_type(const SchemaJson& v, const std::string& t) {
    if (t == "integer") return v.is_number() && v.get<double>() == std::floor(v.get<double>());
    if (t == "number") return v.is_number();
    if (t == "boolean") return v.is_boolean();
    return v.type_name() == t;
  }
  bool object_fits(const SchemaJson& s, const SchemaJson& v) const {
    const SchemaJson none = SchemaJson::object();
    const SchemaJson& properties = s.contains("properties") ? s["properties"] : none;
    if (s.contains("required"))
      for (const auto& name : s["required"])
        if (!v.contains(name.get<std::string>())) return false;
    for (const auto& [key, value] : v.items()) {
      if (properties.contains(key)) {
        if (!fits(properties[key], value)) return false;
      } else if (s.contains("additionalProperties") && !fits(s["additionalProperties"], value)) {
        return false;
      }
    }
    return true;
  }
  bool array_fits(const SchemaJson& s, const SchemaJson& v) const {
    if (v.size() < s.value("minItems", 0u) || v.size() > s.value("maxItems", 1u << 20))
      return false;
    const size_t fixed = s.contains("prefixItems") ? s["prefixItems"].size() : 0;
    for (size_t i = 0; i < v.size(); ++i) {
      if (i < fixed && !fits(s["prefixItems"][i], v[i])) return false;
      if (i >= fixed && s.contains("items") && !fits(s["items"], v[i])) return false;
    }
    return true;
  }
  static bool number_fits(const SchemaJson& s, double x) {
    if (s.contains("multipleOf")) {
      const double times = x / s["multipleOf"].get<double>();
      if (std::abs(times - std::round(times)) > 1e-6) return false;
    }
    return !(s.contains("minimum") && x < s["minimum"].get<double>()) &&
           !(s.contains("maximum") && x > s["maximum"].get<double>()) &&
           !(s.contains("exclusiveMinimum") && x <= s["exclusiveMinimum"].get<double>()) &&
           !(s.contains("exclusiveMaximum") && x >= s["exclusiveMaximum"].get<double>());
  }
  static bool string_fits(const SchemaJson& s, const std::string& text) {
    size_t length = 0;
    for (const char *p = text.data(), *end = p + text.size(); p < end; ++length)
      p += read_utf8(p, end).length;
    return length >= s.value("minLength", 0u) && length <= s.value("maxLength", 1u << 20);
  }

  const SchemaJson& root_;
};

// Schemas over every kind that is supported, with a recursive definition to refer to.
class RandomSchema {
 public:
  explicit RandomSchema(uint32_t seed) : random_(seed) {}
  SchemaJson make() {
    SchemaJson s = schema(3);
    if (!s.is_object()) return make();
    s["$defs"]["tree"] = SchemaJson::parse(
        R"({"type": "object", "properties": {"v": {"type": "integer"}, "kids": {"type": "array",
        "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}}, "required": ["v"],
        "additionalProperties": false})");
    return s;
  }

 private:
  int below(int n) { return int(random_() % unsigned(n)); }
  SchemaJson schema(int depth) {
    switch (below(depth > 0 ? 11 : 7)) {
      case 0:
        return string();
      case 1:
        return number("integer");
      case 2:
        return number("number");
      case 3:
        return {{"type", "boolean"}};
      case 4:
        return {{"enum", {"a", "ab", "é\n\"", 3, nullptr, {1, 2}, {{"k", "v"}}}}};
      case 5:
        return {{"type", {"string", "null"}}, {"maxLength", 4}};
      case 6:
        return {{"const", below(2) ? SchemaJson("c\\d") : SchemaJson(-7)}};
      case 7:
        return object(depth);
      case 8:
        return array(depth);
      case 9:
        return {{"anyOf", {schema(depth - 1), schema(depth - 1)}}};
      default:
        return below(2) ? SchemaJson{{"$ref", "#/$defs/tree"}}
                        : SchemaJson{{"oneOf",
                                      {{{"type", "string"}, {"maxLength", 3}},
                                       {{"type", "integer"}, {"minimum", -3}}}}};
    }
  }
  SchemaJson string() {
    SchemaJson s{{"type", "string"}};
    const int least = below(4);
    if (below(2)) s["minLength"] = least;
    s["maxLength"] = least + below(6);
    return s;
  }
  SchemaJson number(const char* type) {
    SchemaJson s{{"type", type}};
    const int64_t low = int64_t(random_() % 4000) - 2000;
    if (below(2)) s[below(3) ? "minimum" : "exclusiveMinimum"] = low;
    if (below(2)) s[below(3) ? "maximum" : "exclusiveMaximum"] = low + 2 + below(3000);
    if (below(4) == 0) s["multipleOf"] = below(2) ? SchemaJson(1 + below(60)) : SchemaJson(0.25);
    return s;
  }
  SchemaJson object(int depth) {
    SchemaJson s{{"type", "object"}, {"properties", SchemaJson::object()}};
    SchemaJson required = SchemaJson::array();
    for (const char* name : {"a", "ab", "b c", "d\"e", "é"}) {
      if (below(3) == 0) continue;
      s["properties"][name] = schema(depth - 1);
      if (below(2)) required.push_back(name);
    }
    if (below(2)) s["required"] = required;
    if (below(3) == 0) s["additionalProperties"] = false;
    if (below(4) == 0) s["additionalProperties"] = {{"type", "integer"}};
    return s;
  }
  SchemaJson array(int depth) {
    SchemaJson s{{"type", "array"}};
    if (below(3) == 0) s["prefixItems"] = {schema(depth - 1), schema(depth - 1)};
    if (below(4)) s["items"] = schema(depth - 1);
    const int least = below(3);
    if (below(2)) s["minItems"] = least;
    s["maxItems"] = least + below(4);
    return s;
  }

  std::mt19937 random_;
};

}  // namespace hearth
