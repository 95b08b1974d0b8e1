// Patterns and JSON schemas of constrained output: what is accepted becomes an automaton that never
// ends in a state without a way on.
#include <algorithm>

#include "formats/json.h"
#include "fuzz.h"
#include "grammar/automaton.h"
#include "grammar/json_schema.h"

namespace {

// Writes a text, led by the input's bytes.
void walk(hearth::Automaton a, std::string_view guide) {
  a.allow(200'000);
  hearth::StateId s = a.start();
  for (size_t i = 0; i < 48 && !a.ended(s); ++i) {
    const auto first = uint8_t(guide.empty() ? 'a' : guide[i % guide.size()]);
    hearth::StateId next = hearth::Automaton::dead;
    for (int b = 0; b < 256 && next == hearth::Automaton::dead; ++b)
      next = a.step(s, uint8_t(first + b));
    hearth::fuzz::require(next != hearth::Automaton::dead);
    s = next;
  }
}

}  // namespace

int fuzz_regex(const uint8_t* data, size_t size) {
  return hearth::fuzz::taken([&] {
    const std::string_view pattern = hearth::fuzz::text_of(data, size);
    walk(hearth::Automaton(hearth::Network(hearth::regex_grammar(pattern, "regex"))), pattern);
  });
}

hearth::fuzz::Seeds seeds_regex() {
  return {"[a-z]+@[a-z]+\\.(com|org)",
          "(\\d{3}-){2}\\d{4}",
          "^(?:yes|no)?$",
          "[^\\s\\x00-\\x1f]{1,8}",
          "\\u00e9|\\u{1f600}|[\\w.-]*",
          "((a|b)*a(a|b){9}|)c{2,}",
          ".{0,3}?x",
          "(?<n>a|b|)+"};
}

int fuzz_json_schema(const uint8_t* data, size_t size) {
  return hearth::fuzz::taken([&] {
    const std::string_view text = hearth::fuzz::text_of(data, size);
    const auto schema = hearth::parse_ordered_json(text, "schema");
    walk(hearth::Automaton(hearth::Network(hearth::schema_grammar(schema, "schema"))), text);
  });
}

hearth::fuzz::Seeds seeds_json_schema() {
  return {
      R"({"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}, "b": {"type":
      ["integer", "null"], "minimum": -5, "exclusiveMaximum": 90}}, "required": ["b"],
      "additionalProperties": {"enum": [1, "x", [true]]}})",
      R"({"$defs": {"t": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/t"}, {"const":
      "l"}]}, "minItems": 1, "maxItems": 4}}, "$ref": "#/$defs/t"})",
      R"({"oneOf": [{"type": "string", "format": "date-time"}, {"type": "number", "minimum": 0}]})",
      R"({"type": "array", "prefixItems": [{"type": "boolean"}, true], "items": false})",
      R"({"properties": {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa": {}, "aab": {}}, "additionalProperties":
      true})",
      R"({"allOf": [{"type": "string", "pattern": "^a\\d*|b$"}], "title": "t"})",
      R"({"type": "number", "multipleOf": 0.25, "minimum": -1.5, "exclusiveMaximum": 90.1})",
      R"({"type": ["string", "integer"], "format": "duration", "maxLength": 9, "multipleOf": 12})",
      R"({"pattern": "^a+(b|c)*$", "format": "hostname", "minLength": 2, "maxLength": 8})",
      R"({"patternProperties": {"^x": {"format": "ipv6"}}, "minProperties": 1, "maxProperties": 3})",
      R"({"allOf": [{"properties": {"a": {"minimum": 2}}}, {"properties": {"a": {"type": "integer"}},
      "required": ["a"]}], "type": "object"})",
      R"({"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"format": "uri"}})",
      "{}"};
}
