// Strings of JSON schemas: patterns and formats.
#include "unit/grammar_texts.h"
#include "unit/message_of.h"

namespace hearth {
namespace {

TEST(GrammarStrings, Patterns) {
  Automaton a = automaton(R"({"type": "string", "pattern": "^[a-c]+\"?$"})");
  EXPECT_TRUE(takes(a, R"("abc")"));
  EXPECT_TRUE(takes(a, R"("abc\"")"));
  EXPECT_FALSE(takes(a, R"("abd")"));
  Automaton inside = automaton(R"({"type": "string", "pattern": "x\\d"})");
  EXPECT_TRUE(takes(inside, R"("--x7--\n")"));
  EXPECT_FALSE(takes(inside, R"("--x--")"));
}

TEST(GrammarStrings, Formats) {
  struct Case {
    const char* format;
    std::vector<std::string> taken, left;
  };
  for (const auto& [name, taken, left] : std::vector<Case>{
           {"date",
            {"2024-02-29", "2000-02-29", "2026-04-30", "2026-12-31"},
            {"2023-02-29", "1900-02-29", "2026-04-31", "2026-13-01", "2026-1-1"}},
           {"time",
            {"23:59:59.5Z", "00:00:00+05:30"},
            {"24:00:00Z", "12:00:00", "12:00Z", "12:60:00Z"}},
           {"date-time",
            {"2026-11-17T12:00:00+01:00", "2026-11-17T12:00:00Z"},
            {"2026-11-17", "2026-11-31T12:00:00Z"}},
           {"duration",
            {"P1Y", "P1Y2M3DT4H5M6S", "PT36H", "PT1M30S", "P2W", "P1M2D", "P1DT12H"},
            {"P", "PT", "P1", "1Y", "P1W2D", "P1Y2D", "PT1H2S", "P1S", "P1DT"}},
           {"email", {"a.b+c@example.org"}, {"a@b", "a", "@b.c", "a@b.c."}},
           {"hostname",
            {"localhost", "example.org", "a-b.c", "127.0.0.1"},
            {"", "-a", "a-", "a..b", "a_b", "a."}},
           {"ipv4", {"255.0.10.199"}, {"256.0.0.1", "01.0.0.1", "1.2.3"}},
           {"ipv6",
            {"::", "::1", "1::", "2001:db8::ff00:42:8329", "1:2:3:4:5:6:7:8",
             "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1::8", "FE80::1", "::ffff:192.0.2.1"},
            {"", ":", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "1::2::3", "1:2:3:4:5:6:7::8",
             "12345::", "g::", ":::", "1:"}},
           {"uuid",
            {"123e4567-e89b-12d3-a456-426614174000"},
            {"123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400g"}},
           {"uri",
            {"https://example.org", "http://a.b:8080/c/d%20e?f=g&h#i", "mailto:a@b.c",
             "urn:isbn:0451450523", "file:///etc/hosts", "http://[::1]:80/", "https://X.org/?q"},
            {"", "example.org", "//a.b", "http:", "http://", "http://a b", "http://a:99999",
             "http://a/%2", "1a:b", "http://a/\\\"", "http://a#b#c"}}}) {
    Automaton f = automaton(SchemaJson{{"type", "string"}, {"format", name}});
    for (const std::string& t : taken) EXPECT_TRUE(takes(f, '"' + t + '"')) << name << " " << t;
    for (const std::string& t : left) EXPECT_FALSE(takes(f, '"' + t + '"')) << name << " " << t;
    std::mt19937 random(9);
    for (int i = 0; i < 20; ++i) {
      const std::string text = written(f, random);
      EXPECT_TRUE(SchemaJson::parse(text).is_string()) << text;
    }
  }
}

TEST(GrammarStrings, LengthsHoldBesidePatternsAndFormats) {
  struct Case {
    const char* schema;
    std::vector<const char*> taken, left;
  };
  for (const auto& [schema, taken, left] : std::vector<Case>{
           {R"({"pattern": "^[a-z]+$", "maxLength": 3})", {"a", "abc"}, {"", "abcd", "aB"}},
           {R"({"pattern": "x\\d", "minLength": 4, "maxLength": 5})",
            {"-x7-", "x7éé", "\\nx1\\n\\n"},
            {"x7", "-x7---", "xxxx"}},
           {R"({"pattern": "^(ab|c)*$", "minLength": 3})", {"abc", "ccc", "cababab"}, {"ab", ""}},
           {R"({"pattern": "^.{2,4}$", "minLength": 1, "maxLength": 9})", {"ab", "abcd"}, {"a"}},
           {R"({"pattern": "^2026-", "format": "date"})", {"2026-02-28"}, {"2025-02-28"}},
           {R"({"format": "email", "maxLength": 8})", {"ab@cd.ef"}, {"abc@cd.ef", "a@b"}},
           {R"({"format": "uri", "minLength": 1, "maxLength": 2083, "pattern": "^https:"})",
            {"https://a.b/c"},
            {"http://a.b/c", "https:"}}}) {
    SchemaJson s = SchemaJson::parse(schema);
    s["type"] = "string";
    Automaton a = automaton(s);
    a.allow(100'000'000);
    for (const std::string t : taken) EXPECT_TRUE(takes(a, '"' + t + '"')) << schema << " " << t;
    for (const std::string t : left) EXPECT_FALSE(takes(a, '"' + t + '"')) << schema << " " << t;
    std::mt19937 random(9);
    for (int i = 0; i < 20; ++i) {
      const std::string text = written(a, random);
      EXPECT_TRUE(text.size() >= 4000 || SchemaJudge(s).fits(SchemaJson::parse(text))) << text;
    }
  }
  const auto refused = [](const char* schema) { return message_of([&] { automaton(schema); }); };
  for (const auto& [schema, part] : std::vector<std::pair<const char*, const char*>>{
           {R"({"format": "uuid", "maxLength": 8})", "no string has"},
           {R"({"pattern": "^a{3}$", "minLength": 4})", "no string has"},
           {R"({"pattern": "^a+$", "format": "date"})", "no finite text"},
           {R"({"pattern": "^(a|bc)+(d|e)+(fg|h)+$", "maxLength": 10000})",
            "more than 50000 states"},
           {R"({"pattern": "^(a{100}b{100}){200}$", "maxLength": 10})", "at most 20000 states"}})
    EXPECT_NE(refused(schema).find(part), std::string::npos) << schema << refused(schema);
}

}  // namespace
}  // namespace hearth
