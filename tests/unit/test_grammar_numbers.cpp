// Numbers of JSON schemas: bounds and multiples, beside sums over whole numbers.
#include "unit/grammar_texts.h"
#include "unit/message_of.h"

namespace hearth {
namespace {

std::string refused(const char* schema) {
  return message_of([&] { automaton(schema); });
}

TEST(GrammarNumbers, IntegerRangesAreExact) {
  std::mt19937 random(4);
  for (int round = 0; round < 150; ++round) {
    const int64_t size = int64_t(std::pow(10, random() % 5)) + 5;
    const int64_t low = int64_t(random() % uint64_t(2 * size)) - size;
    const int64_t high = low + int64_t(random() % uint64_t(size));
    SchemaJson s{{"type", "integer"}, {"minimum", low}, {"maximum", high}};
    Automaton a = automaton(s);
    for (int64_t x = low - 120; x <= high + 120; x += 1 + int64_t(random() % 3))
      ASSERT_EQ(takes(a, std::to_string(x)), x >= low && x <= high) << s << " " << x;
    for (const int64_t x : {low - 1, low, high, high + 1})
      ASSERT_EQ(takes(a, std::to_string(x)), x >= low && x <= high) << s << " " << x;
    for (const char* t : {"01", "1.0", "-0"}) EXPECT_FALSE(takes(a, t)) << t;
  }
  EXPECT_THROW(automaton(R"({"type": "integer", "minimum": 3, "maximum": 2})"), Error);
  Automaton above = automaton(R"({"type": "integer", "exclusiveMinimum": 999999999999999})");
  EXPECT_TRUE(takes(above, "1000000000000000"));
  EXPECT_FALSE(takes(above, "999999999999999"));
  Automaton below = automaton(R"({"type": "number", "exclusiveMaximum": -999999999999999})");
  EXPECT_TRUE(takes(below, "-1000000000000000"));
  EXPECT_FALSE(takes(below, "-999999999999999"));
  Automaton whole = automaton(R"({"type": "integer", "minimum": -1e18, "maximum": 1e18})");
  for (const char* t : {"1000000000000000000", "-1000000000000000000", "0"})
    EXPECT_TRUE(takes(whole, t)) << t;
  for (const char* t : {"1000000000000000001", "2000000000000000000", "10000000000000000000"})
    EXPECT_FALSE(takes(whole, t)) << t;
}

TEST(GrammarNumbers, MultiplesOfIntegersAreExact) {
  std::mt19937 random(5);
  for (int round = 0; round < 150; ++round) {
    const int64_t step = 1 + int64_t(random() % (round < 100 ? 40 : 1000));
    const int64_t low = int64_t(random() % 6000) - 3000, high = low + int64_t(random() % 5000);
    SchemaJson s{{"type", "integer"}, {"multipleOf", step}};
    if (round % 3) s["minimum"] = low;
    if (round % 4) s["maximum"] = high;
    const auto fits = [&](int64_t x) {
      return x % step == 0 && (!s.contains("minimum") || x >= low) &&
             (!s.contains("maximum") || x <= high);
    };
    bool any = false;
    for (int64_t x = -10000; x <= 10000; ++x) any |= fits(x);
    SCOPED_TRACE(s.dump());
    if (!any) {
      EXPECT_NE(message_of([&] { automaton(s); }).find("no integer that is a multiple"),
                std::string::npos);
      continue;
    }
    Automaton a = automaton(s);
    a.allow(1'000'000'000);
    for (int64_t x = -10000; x <= 10000; x += 1 + int64_t(random() % 2))
      ASSERT_EQ(takes(a, std::to_string(x)), fits(x)) << x;
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(fits(std::stoll(written(a, random))));
  }
}

TEST(GrammarNumbers, MultiplesOfDecimalsAreExact) {
  struct Case {
    const char* schema;
    std::vector<const char*> taken, left;
  };
  for (const auto& [schema, taken, left] : std::vector<Case>{
           {R"({"type": "number", "multipleOf": 0.01})",
            {"0", "0.1", "0.10", "-3.14", "12345.67", "9999999999999.99"},
            {"0.001", "0.010", "1e2", "-0", "-0.00", "01", ".5", "5.", "99999999999999.99"}},
           {R"({"type": "number", "multipleOf": 0.25, "minimum": 0.3, "exclusiveMaximum": 1.5})",
            {"0.5", "0.50", "0.75", "1", "1.0", "1.25"},
            {"0", "0.25", "0.3", "1.5", "1.50", "1.1", "-0.5"}},
           {R"({"type": "number", "multipleOf": 2.5})",
            {"0", "2.5", "5", "5.0", "-7.5", "100"},
            {"1", "2", "0.5", "2.50"}},
           {R"({"type": "number", "multipleOf": 10})", {"0", "10", "-120"}, {"5", "10.0", "1e1"}},
           {R"({"type": "integer", "multipleOf": 0.5})", {"0", "3", "-4"}, {"0.5", "1.0"}},
           {R"({"type": "integer", "multipleOf": 1.5})", {"0", "3", "-6"}, {"1", "1.5", "2"}},
           {R"({"type": "integer", "multipleOf": 1e3})", {"0", "3000", "-6000"}, {"300", "1e3"}},
           {R"({"type": "integer", "multipleOf": 86400, "minimum": 1})", {"86400"}, {"0", "864"}},
           {R"({"type": "integer", "multipleOf": 3, "minimum": 1e16})",
            {"10000000000000002"},
            {"3", "10000000000000000"}},
           {R"({"multipleOf": 7, "minimum": -7, "maximum": 7})", {"-7", "0", "7"}, {"1"}}}) {
    Automaton a = automaton(schema);
    for (const char* t : taken) EXPECT_TRUE(takes(a, t)) << schema << " " << t;
    for (const char* t : left) EXPECT_FALSE(takes(a, t)) << schema << " " << t;
  }
}

TEST(GrammarNumbers, MultiplesThatAreTooLargeAreRefused) {
  for (const auto& [schema, part] : std::vector<std::pair<const char*, const char*>>{
           {R"({"type": "integer", "multipleOf": 0})", "multipleOf to be more than 0"},
           {R"({"type": "integer", "multipleOf": -2})", "multipleOf to be more than 0"},
           {R"({"type": "integer", "multipleOf": "2"})", "multipleOf to be a number"},
           {R"({"type": "integer", "multipleOf": 9973})", "up to 1000"},
           {R"({"type": "number", "multipleOf": 1e-20})", "multipleOf of at most 1e15"},
           {R"({"type": "number", "multipleOf": 1e16})", "multipleOf of at most 1e15"},
           {R"({"type": "number", "multipleOf": 0.5, "minimum": 0.6, "maximum": 0.9})",
            "no number that is a multiple"}}) {
    const std::string said = refused(schema);
    EXPECT_NE(said.find(part), std::string::npos) << schema << ": " << said;
    EXPECT_EQ(said.find('\n'), std::string::npos);
  }
  // Every multiple up to 1000 fits, whatever its bounds are.
  for (const int step : {997, 991, 1000, 1024})
    EXPECT_EQ(message_of([&] {
                automaton(SchemaJson{{"type", "integer"}, {"multipleOf", step}, {"maximum", 1e18}});
              }),
              "no error");
}

TEST(GrammarNumbers, BoundsHold) {
  for (const char* s :
       {R"({"type": "number", "minimum": 0})", R"({"type": "number", "maximum": -2})",
        R"({"type": "number", "exclusiveMinimum": 0, "maximum": 1})",
        R"({"type": "number", "exclusiveMaximum": 9.1, "minimum": 9.0999})",
        R"({"type": "number", "exclusiveMinimum": 99, "exclusiveMaximum": 100})",
        R"({"type": "number", "minimum": 0.1, "maximum": 0.30000000000000004})",
        R"({"type": "number", "minimum": -3.75, "exclusiveMaximum": 12})"}) {
    Automaton a = automaton(s);
    const SchemaJson schema = SchemaJson::parse(s);
    std::mt19937 random(8);
    for (int i = 0; i < 300; ++i) {
      const std::string text = written(a, random);
      EXPECT_TRUE(SchemaJudge(schema).fits(SchemaJson::parse(text))) << s << " wrote " << text;
    }
  }
  Automaton a = automaton(R"({"type": "number", "exclusiveMinimum": 0, "maximum": 1})");
  for (const char* t : {"0.5", "1", "1.0", "0.001"}) EXPECT_TRUE(takes(a, t)) << t;
  for (const char* t : {"0", "0.0", "1.5", "-1", "2", "1.01"}) EXPECT_FALSE(takes(a, t)) << t;
  Automaton both = automaton(R"({"type": "number", "minimum": -0.5, "exclusiveMaximum": 2.25})");
  for (const char* t : {"-0.5", "-0.50", "0", "2.2", "2.249"}) EXPECT_TRUE(takes(both, t)) << t;
  for (const char* t : {"-0.51", "2.25", "2.250", "3"}) EXPECT_FALSE(takes(both, t)) << t;
  Automaton two = automaton(R"({"type": "integer", "minimum": 3, "exclusiveMinimum": 3.5})");
  EXPECT_TRUE(takes(two, "4"));
  EXPECT_FALSE(takes(two, "3"));
}

}  // namespace
}  // namespace hearth
