// JSON schemas as grammars: texts written at random validate, texts that a validator takes are
// taken, unsupported keywords are named, and hostile schemas end soon.
#include <random>

#include "formats/json.h"
#include "unit/grammar_texts.h"
#include "unit/message_of.h"

namespace hearth {
namespace {

TEST(GrammarSchema, WhatItWritesValidates) {
  std::mt19937 random(3);
  int whole = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    const SchemaJson schema = RandomSchema(seed).make();
    SCOPED_TRACE(schema.dump());
    std::optional<Automaton> a;
    try {
      a.emplace(Network(schema_grammar(schema, "schema")));
    } catch (const Error& e) {
      // Some random schemas have no value.
      const std::string said = e.what();
      ASSERT_TRUE(said.find("no finite text") != said.npos ||
                  said.find("lies between") != said.npos || said.find("more than the") != said.npos)
          << said;
      continue;
    }
    for (int i = 0; i < 10; ++i) {
      const std::string text = written(*a, random);
      if (text.size() >= 4000) continue;
      ASSERT_TRUE(takes(*a, text));
      SchemaJson value;
      ASSERT_EQ(message_of([&] { value = SchemaJson::parse(text); }), "no error") << text;
      ASSERT_TRUE(SchemaJudge(schema).fits(value)) << text;
      ++whole;
    }
  }
  EXPECT_GT(whole, 3000);
}

TEST(GrammarSchema, TakesWhatTheSchemaSays) {
  Automaton a = automaton(
      R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer",
          "minimum": 0}, "tags": {"type": "array", "items": {"type": "string"}}},
          "required": ["name"]})");
  EXPECT_TRUE(takes(a, R"({"name":"x"})"));
  EXPECT_TRUE(takes(a, R"({ "name": "x", "age": 3, "tags": [] })"));
  EXPECT_TRUE(takes(a, "{\n  \"name\": \"\\u00e9\\ud83d\\ude00\",\n  \"tags\": [\"a\", \"b\"]\n}"));
  EXPECT_FALSE(takes(a, R"({"age":3,"name":"x"})"));   // another order
  EXPECT_FALSE(takes(a, R"({"age":3})"));              // a required one is missing
  EXPECT_FALSE(takes(a, R"({"name":"x","more":1})"));  // an undeclared one
  EXPECT_FALSE(takes(a, R"({"name":"x",})"));
  EXPECT_FALSE(takes(a, "{\"name\":\"\\ud83d\"}"));  // half a character
  EXPECT_FALSE(takes(a, R"({   "name":"x"})"));      // too much white space
  EXPECT_FALSE(takes(a, "{\"name\":\"a\nb\"}"));
  Automaton open = automaton(R"({"properties": {"a": {"type": "integer"}}, "required": ["a", "z"],
                              "additionalProperties": {"type": "string"}})");
  EXPECT_TRUE(takes(open, R"({"a":1,"z":"s","ab":"t","":"u"})"));
  EXPECT_FALSE(takes(open, R"({"a":1,"z":"s","a":"t"})"));
  EXPECT_FALSE(takes(open, R"({"a":1,"z":"s","\u0061":"t"})"));
  EXPECT_FALSE(takes(open, R"({"a":1,"z":"s","b":2})"));
  Automaton any = Automaton{Network(any_object_grammar("json_object"))};
  EXPECT_TRUE(takes(any, R"({"a": [1, -2.5e+3, true, null, {"b": {}}], "c": "d"})"));
  EXPECT_FALSE(takes(any, "[1]"));
  EXPECT_FALSE(takes(any, R"({"a": 01})"));
}

TEST(GrammarSchema, Recurses) {
  Automaton tree = automaton(
      R"({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"l": {"anyOf":
          [{"$ref": "#/$defs/n"}, {"type": "null"}]}}, "required": ["l"]}}})");
  EXPECT_TRUE(takes(tree, R"({"l":{"l":{"l":null}}})"));
  EXPECT_FALSE(takes(tree, R"({"l":{"l":{}}})"));
  Automaton self = automaton(R"({"anyOf": [{"$ref": "#"}, {"type": "boolean"}]})");
  EXPECT_TRUE(takes(self, "true"));
  // Nesting ends somewhere, and never in a dead end.
  std::string deep;
  StateId s = tree.start();
  for (const std::string level = R"({"l":)"; tree.read(s, level) != Automaton::dead; deep += level)
    s = tree.read(s, level);
  EXPECT_GT(deep.size(), 50 * 5u);
  EXPECT_NE(tree.read(s, "null}"), Automaton::dead);
}

TEST(GrammarSchema, RefusesByNameAndPath) {
  const std::vector<std::pair<const char*, std::vector<const char*>>> cases = {
      {R"({"type": "object", "properties": {"a": {"not": {}}}})", {"not", "#/properties/a"}},
      {R"({"type": "array", "uniqueItems": true})", {"uniqueItems"}},
      {R"({"type": "object", "patternProperties": {}})", {"patternProperties"}},
      {R"({"if": {}, "then": {}})", {"if"}},
      {R"({"allOf": [{"pattern": "a"}, {"pattern": "b"}]})", {"allOf", "pattern"}},
      {R"({"allOf": [{"properties": {"a": {}}, "additionalProperties": false}, {"properties": {"b": {}}}]})",
       {"allOf", "additionalProperties"}},
      {R"({"properties": {"a": {}}, "propertyNames": {"pattern": "b"}})", {"propertyNames"}},
      {R"({"patternProperties": {"a": {}, "b": {}}})", {"patternProperties", "one pattern"}},
      {R"({"type": "object", "minProperties": 2})", {"minProperties"}},
      {R"({"properties": {"a": {}, "b": {}}, "minProperties": 1})", {"minProperties"}},
      {R"({"type": "object", "dependentRequired": {"a": ["b"]}})", {"dependentRequired"}},
      {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", {"oneOf", "anyOf"}},
      {R"({"type": "string", "format": "idn-email"})", {"idn-email", "hostname, ipv4, ipv6"}},
      {R"x({"type": "string", "pattern": "(?=a)"})x", {"lookahead"}},
      {R"({"type": "strin"})", {"strin"}},
      {R"({"$ref": "#/$defs/x"})", {"#/$defs/x"}},
      {R"({"$ref": "other.json"})", {"other.json"}},
      {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})", {"finite"}},
      {R"({"type": "object", "properties": {}, "required": ["b"], "additionalProperties": false})",
       {"b"}},
      {R"({"enum": []})", {"enum"}},
      {R"({"const": "a", "type": "integer"})", {"type"}},
      {R"([])", {"schema"}},
      {R"(false)", {"false"}},
      {R"({"type": "string", "maxLength": -1})", {"maxLength"}},
      {R"({"type": "array", "maxItems": 1000000000})", {"maxItems"}},
      {R"({"type": "array", "minItems": 3, "maxItems": 2})", {"2"}}};
  for (const auto& [schema, parts] : cases) {
    const std::string said = message_of([&, &schema = schema] { automaton(schema); });
    EXPECT_EQ(said.find('\n'), std::string::npos);
    for (const char* part : parts)
      EXPECT_NE(said.find(part), std::string::npos) << schema << ": " << said;
  }
}

TEST(GrammarSchema, OneOfWithADiscriminator) {
  Automaton a = automaton(
      R"({"oneOf": [{"type": "object", "properties": {"k": {"const": "a"}, "x": {"type": "integer"}},
          "required": ["k", "x"]}, {"type": "object", "properties": {"k": {"const": "b"}},
          "required": ["k"]}]})");
  EXPECT_TRUE(takes(a, R"({"k":"a","x":1})"));
  EXPECT_TRUE(takes(a, R"({"k":"b"})"));
  EXPECT_FALSE(takes(a, R"({"k":"a"})"));
}

// Each character of a name takes a level of the stack.
TEST(GrammarSchema, NamesOfPropertiesAreBounded) {
  const auto named = [](size_t characters, const char* character) {
    std::string name;
    for (size_t i = 0; i < characters; ++i) name += character;
    return SchemaJson{{"type", "object"},
                      {"properties", {{name, SchemaJson::object()}}},
                      {"additionalProperties", true}};
  };
  EXPECT_EQ(message_of([&] { automaton(named(1024, "\xc3\xa9")); }), "no error");
  for (const size_t n : {size_t(1025), size_t(200'000)})
    EXPECT_NE(message_of([&] { automaton(named(n, "a")); }).find("at most 1024 characters"),
              std::string::npos);
  const std::string name(1024, 'a');
  Automaton a = automaton(named(1024, "a"));
  EXPECT_TRUE(takes(a, "{\"" + name + "a\": 1}"));
  EXPECT_FALSE(takes(a, "{\"x\": 1, \"" + name + "\": 1}"));
}

// "a0", "a1", .. each written by `form`, with commas between them.
template <class F>
std::string listed(int count, F&& form) {
  std::string all;
  for (int i = 0; i < count; ++i) all += (i ? "," : "") + form("\"a" + std::to_string(i) + "\"");
  return all;
}

// Schemas of about 1 MiB that need work in the square of their size, if it is not counted.
TEST(GrammarSchema, WorkDoesNotGrowWithTheSquare) {
  const auto said = [](const std::string& text) {
    return message_of([&] { automaton(parse_ordered_json(text, "schema")); });
  };
  const auto has = [&](const std::string& text, const char* part) {
    const std::string what = said(text);
    EXPECT_NE(what.find(part), std::string::npos) << what;
  };
  const auto same = [](const std::string& name) { return name; };
  const auto any = [](const std::string& name) { return name + ":{}"; };
  has("{\"oneOf\":[" + listed(60000, [](const std::string& n) { return "{\"const\":" + n + "}"; }) +
          "]}",
      "at most 256 schemas in oneOf, got 60000");
  has("{\"oneOf\":[{\"enum\":[" + listed(50000, same) + "]},{\"enum\":[" +
          listed(50000, [](const std::string& n) { return "[" + n + "]"; }) + "]}]}",
      "comparisons: use anyOf");
  // Pairs of objects that share a property of very many types, or of very many values.
  const auto pairs = [&](const std::string& shared) {
    std::string all;
    for (int i = 0; i < 200; ++i)
      all += (i ? "," : "") +
             fmt::format(R"({{"type":"object","properties":{{"a":{{"$ref":"#/$defs/T"}},)"
                         R"("b":{{"const":{}}}}},"required":["a","b"]}})",
                         i);
    return R"({"$defs":{"T":)" + shared + R"(},"oneOf":[)" + all + "]}";
  };
  has(pairs("{\"type\":[" + listed(20000, same) + "]}"), "comparisons: use anyOf");
  has(pairs("{\"enum\":[" + listed(20000, same) + "]}"), "comparisons: use anyOf");
  // Two objects that are the same in every property, over and over.
  const std::string wide = "{\"type\":\"object\",\"properties\":{" + listed(9000, any) +
                           "},\"required\":[" + listed(9000, same) + "]";
  has("{\"$defs\":{\"a\":" + wide + "},\"b\":" + wide +
          "}},\"oneOf\":[{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/b\"}]}",
      "may match the same value");
  for (const char* more : {"", ",\"additionalProperties\":true"}) has(wide + more + "}", "");
  has("{\"enum\":[" + listed(40000, same) + "],\"type\":[" + listed(40000, same) + "]}",
      "no value of enum");
  has("{\"$defs\":{" + listed(20000, any) + "},\"anyOf\":[" +
          listed(20000,
                 [](const std::string& n) { return "{\"$ref\":\"#/$defs/" + n.substr(1) + "}"; }) +
          "]}",
      "");
  std::string codes, members;
  for (uint32_t c = 0x4e00; c < 0x9e00; ++c) {
    const std::string one{char(0xe0 | c >> 12), char(0x80 | (c >> 6 & 63)), char(0x80 | (c & 63))};
    if (c % 2) codes += one;
    members += (members.empty() ? "\"" : ",\"") + one + "\":true";
  }
  has("{\"type\":\"string\",\"pattern\":\"[" + codes + "]\"}", "no error");
  has("{\"properties\":{" + members + "},\"additionalProperties\":true}", "");
}

TEST(GrammarSchema, HostileSchemasAreBounded) {
  SchemaJson wide{{"type", "object"}, {"properties", SchemaJson::object()}}, list, chain,
      deep = true;
  for (int i = 0; i < 1500; ++i) wide["properties"]["p" + std::to_string(i)] = {{"type", "string"}};
  for (int i = 0; i < 20000; ++i)
    list["enum"].push_back(std::string(size_t(i % 50), 'a') + std::to_string(i));
  for (int i = 0; i < 3000; ++i)
    chain["$defs"]["d" + std::to_string(i)] = {
        {"$ref", "#/$defs/d" + std::to_string((i * 7 + 1) % 3000)}};
  chain["$ref"] = "#/$defs/d0";
  for (int i = 0; i < 60; ++i) deep = SchemaJson{{"type", "array"}, {"items", deep}};
  SchemaJson many{{"type", "array"},
                  {"items", {{"type", "string"}, {"maxLength", 10000}}},
                  {"maxItems", 10000}};
  SchemaJson twins;  // every branch is the same: one state has them all
  for (int i = 0; i < 3000; ++i) twins["anyOf"].push_back({{"type", "string"}});
  SchemaJson open = wide;
  open["additionalProperties"] = true;
  for (const SchemaJson& s : {wide, list, chain, deep, many, twins, open}) {
    try {
      Automaton a = automaton(s);
      a.allow(2'000'000);
      std::mt19937 random(2);
      written(a, random, 300);
    } catch (const Error& e) {
      EXPECT_TRUE(e.usage());
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
    }
  }
}

struct KeywordCase {
  const char* schema;
  std::vector<const char*> taken, left;
};
void expect_takes(const std::vector<KeywordCase>& cases) {
  for (const auto& [schema, taken, left] : cases) {
    Automaton a = automaton(schema);
    for (const char* t : taken) EXPECT_TRUE(takes(a, t)) << schema << " " << t;
    for (const char* t : left) EXPECT_FALSE(takes(a, t)) << schema << " " << t;
  }
}

TEST(GrammarSchema, NamesAndNumbersOfProperties) {
  expect_takes(
      {{R"({"type": "object", "patternProperties": {"^x-[a-z]+$": {"type": "integer"}}})",
        {"{}", R"({"x-a": 1, "x-bc": 2})"},
        {R"({"x-": 1})", R"({"x-a": "s"})", R"({"y": 1})"}},
       {R"({"type": "object", "patternProperties": {"^\\d+$": {}}, "additionalProperties": false,
            "minProperties": 1, "maxProperties": 2})",
        {R"({"1": null})", R"({"1": 1, "22": []})"},
        {"{}", R"({"1": 1, "2": 2, "3": 3})", R"({"a": 1})"}},
       {R"({"propertyNames": {"pattern": "^[A-Z]+$", "maxLength": 2},
            "additionalProperties": {"type": "boolean"}})",
        {"{}", R"({"A": true, "AB": false})"},
        {R"({"ABC": true})", R"({"a": true})", R"({"A": 1})"}},
       {R"({"propertyNames": {"$ref": "#/$defs/c"}, "$defs": {"c": {"enum": ["red", "blue"]}}})",
        {R"({"red": 1, "blue": {}})"},
        {R"({"green": 1})"}},
       {R"({"properties": {"a": {}, "b": {}}, "required": ["a"], "minProperties": 1,
            "maxProperties": 2})",
        {R"({"a": 1})", R"({"a": 1, "b": 2})"},
        {"{}"}},
       {R"({"type": "object", "maxProperties": 0})", {"{}", "{ }"}, {R"({"a": 1})"}}});
}

TEST(GrammarSchema, AllOfMergesItsSchemas) {
  expect_takes(
      {{R"({"allOf": [{}, true, {"type": "integer"}]})", {"1"}, {"\"a\""}},
       {R"({"type": "object", "allOf": [{"$ref": "#/$defs/base"},
            {"properties": {"b": {"type": "integer"}}, "required": ["b"]}],
            "$defs": {"base": {"properties": {"a": {"type": "string"}}, "required": ["a"]}}})",
        {R"({"a": "x", "b": 1})"},
        {R"({"a": "x"})", R"({"b": 1})", R"({"a": "x", "b": 1, "c": 2})"}},
       {R"({"allOf": [{"type": ["number", "string"], "minimum": 3, "maxLength": 3},
            {"type": ["integer", "string"], "minimum": 5, "maximum": 9, "maxLength": 2}]})",
        {"5", "9", "\"ab\""},
        {"4", "5.5", "10", "\"abc\""}},
       {R"({"allOf": [{"properties": {"a": {"minimum": 1}}}, {"properties": {"a": {"maximum": 3}}},
            {"properties": {"a": {"type": "integer"}}, "additionalProperties": false}]})",
        {"{}", R"({"a": 1})", R"({"a": 3})"},
        {R"({"a": 0})", R"({"a": 4})", R"({"b": 1})"}},
       {R"({"$ref": "#/$defs/n", "$defs": {"n": {"allOf": [{"$ref": "#/$defs/base"},
            {"properties": {"next": {"$ref": "#/$defs/n"}}}]},
            "base": {"properties": {"v": {"type": "boolean"}}, "required": ["v"]}}})",
        {R"({"v": true})", R"({"v": true, "next": {"v": false}})"},
        {R"({"next": {"v": false}})"}},
       {R"({"oneOf": [{"type": "null"}, {"type": "string", "contentEncoding": "base64"}],
            "discriminator": {"propertyName": "k"}})",
        {"null", "\"x\""},
        {"1"}}});
  // References that double at every level, and one that leads to itself.
  SchemaJson twice{{"$ref", "#/$defs/d0"}};
  for (int i = 0; i < 40; ++i) {
    const SchemaJson next{{"$ref", "#/$defs/d" + std::to_string(i + 1)}};
    twice["$defs"]["d" + std::to_string(i)]["allOf"] = {next, next};
  }
  twice["$defs"]["d40"] = {{"type", "integer"}};
  EXPECT_NE(message_of([&] { automaton(twice); }).find("allOf have more than"), std::string::npos);
  EXPECT_NE(message_of([&] {
              automaton(R"({"allOf": [{"$ref": "#"}, {"type": "string"}]})");
            }).find("nested schemas"),
            std::string::npos);
}

}  // namespace
}  // namespace hearth
