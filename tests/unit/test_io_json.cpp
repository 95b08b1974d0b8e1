// Strict JSON: what is taken, what is refused and with which words; the nearest key.
#include "formats/json.h"

#include "test_io_support.h"

namespace hearth::test {
namespace {

std::string error_in(std::string_view text, JsonLimits limits = {}) {
  return error_of([&] { parse_json(text, "x.json", limits); });
}

TEST(IoJson, ReadsEveryKindOfValue) {
  const auto v = parse_json(R"({"a": [1, -2, 1.5, true, null, {"b": "\u00e9"}], "c": {}})", "x");
  EXPECT_EQ(v["a"][0].get<int>(), 1);
  EXPECT_TRUE(v["a"][0].is_number_unsigned());
  EXPECT_EQ(v["a"][1].get<int>(), -2);
  EXPECT_EQ(v["a"][2].get<double>(), 1.5);
  EXPECT_EQ(v["a"][3], true);
  EXPECT_TRUE(v["a"][4].is_null());
  EXPECT_EQ(v["a"][5]["b"], "é");
  EXPECT_TRUE(v["c"].empty());
  EXPECT_EQ(parse_json(" 7 ", "x"), 7);
}

TEST(IoJson, ErrorsGiveLineAndColumn) {
  expect_error(error_in("{\n  \"a\": 1,\n  \"b\": ?\n}"), "[x.json:3:8] expected valid JSON");
  expect_error(error_in("{\"a\": 1} x"), "[x.json:1:10]");
  expect_error(error_in("[1, 2"), "unexpected end of input");
  expect_error(error_in(""), "expected valid JSON");
  expect_error(error_in("[\n1,\n]"), "[x.json:3:1]");
  expect_error(error_in("[1e999]"), "x.json");
}

TEST(IoJson, ErrorsOfALineAddOnlyTheColumn) {
  for (const char* end : {"", "\n", "\r\n"}) {
    const std::string line = std::string("{\"a\": ?}") + end, cut = std::string("{\"a\":") + end;
    expect_error(error_of([&] { parse_json_line(line, "x.jsonl:2"); }), "[x.jsonl:2:7] expected");
    expect_error(error_of([&] { parse_json_line(cut, "x.jsonl:2"); }), "[x.jsonl:2:6] expected");
    expect_error(error_of([&] { parse_ordered_json_line(cut, "x.jsonl:2"); }), "[x.jsonl:2:6]");
  }
}

TEST(IoJson, ErrorsStayShortAndClean) {
  const std::string error = error_in("[\"" + std::string(100'000, 'z') + "\x01\"]");
  expect_error(error, "control character");
  EXPECT_LT(error.size(), 300u);
  expect_error(error_in("{\"\xff\xfe\": 1}"), "UTF-8");
  EXPECT_EQ(error_in("[\"\xff\"]").find('\xff'), std::string::npos);
}

TEST(IoJson, RefusesDuplicateKeys) {
  expect_error(error_in(R"({"a": 1, "b": {"k": 1, "k": 2}})"), "got \"k\" twice");
  EXPECT_EQ(error_in(R"({"a": {"k": 1}, "b": {"k": 2}})"), "");
}

TEST(IoJson, BoundsDepthAndSize) {
  EXPECT_EQ(error_in("[[[1]]]", {.max_depth = 3}), "");
  expect_error(error_in("[[[[1]]]]", {.max_depth = 3}), "nesting of at most 3");
  expect_error(error_in(std::string(1'000'000, '[')), "nesting of at most 64");
  expect_error(error_in("[1,2,3]", {.max_bytes = 6}), "at most 6 bytes of JSON, got 7");
}

TEST(IoJson, QuotesNamesOnOneLine) {
  EXPECT_EQ(in_quotes("a\nb\"é"), R"("a\nb\"\u00e9")");
  EXPECT_LT(in_quotes(std::string(1000, 'x')).size(), 100u);
  EXPECT_EQ(in_quotes("\xff"), R"("\ufffd")");
}

TEST(IoJson, NearestKey) {
  const std::vector<std::string> keys = {"n_layer", "n_head", "vocab_size", "lr"};
  EXPECT_EQ(nearest("n_layers", keys), "n_layer");
  EXPECT_EQ(nearest("vcoab_size", keys), "vocab_size");
  EXPECT_EQ(nearest("rl", keys), "lr");  // one swap
  EXPECT_EQ(nearest("", keys), "lr");
  const std::vector<std::string_view> views = {"abc", "abd"};
  EXPECT_EQ(nearest("abx", views), "abc");  // the first of equals
  EXPECT_EQ(nearest("x", std::span<const std::string>()), "");
}

TEST(IoJson, OrderedObjectsKeepTheirOrder) {
  const auto j = parse_ordered_json(R"({"b": {"z": 1, "a": 2}, "a": [{"y": 0, "x": 0}]})", "t");
  EXPECT_EQ(j.dump(), R"({"b":{"z":1,"a":2},"a":[{"y":0,"x":0}]})");
  expect_error(error_of([] { parse_ordered_json(R"({"a": {"b": 1, "b": 2}})", "t"); }),
               "expected every key once, got \"b\" twice");
  EXPECT_EQ(parse_ordered_json(R"([{"a": 1}, {"a": 2}])", "t").size(),
            2u);  // each object by itself
}

}  // namespace
}  // namespace hearth::test
