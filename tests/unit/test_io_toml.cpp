// TOML settings: what is taken, and what is refused with the line it stands in.
#include "formats/toml.h"

#include <nlohmann/json.hpp>

#include "test_io_support.h"

namespace hearth::test {
namespace {

using Values = std::vector<std::string>;

Values values_of(const std::string& value) {
  const auto items = parse_toml("key = " + value, "x.toml");
  return items.size() == 1 ? items[0].values : Values{"(not one item)"};
}

std::string error_in(std::string_view text) {
  return error_of([&] { parse_toml(text, "x.toml"); });
}

TEST(IoToml, ReadsEveryKindOfValue) {
  EXPECT_EQ(values_of("12"), Values{"12"});
  EXPECT_EQ(values_of("+1_000  # steps"), Values{"1000"});
  EXPECT_EQ(values_of("-1.5e-07"), Values{"-1.5e-07"});
  EXPECT_EQ(values_of("true"), Values{"true"});
  EXPECT_EQ(values_of("wsd_sqrt"), Values{"wsd_sqrt"});
  EXPECT_EQ(values_of("\"a # b, [c] 'd'\""), Values{"a # b, [c] 'd'"});
  EXPECT_EQ(values_of(R"('C:\new "x"')"), Values{R"(C:\new "x")"});
  EXPECT_EQ(values_of("[]"), Values{});
  EXPECT_EQ(values_of("[\"a\", 'b', 3,]"), (Values{"a", "b", "3"}));
  EXPECT_EQ(values_of("[ # why\n  \"a\",\n\n  \"b\"\n]"), (Values{"a", "b"}));
  EXPECT_EQ(values_of(R"("\u00e9 \U0001F600 \" \\ \b\t\n\f\r")"),
            Values{"\u00e9 \U0001F600 \" \\ \b\t\n\f\r"});
}

TEST(IoToml, KeepsSectionsAndOrder) {
  const auto items =
      parse_toml("# first\r\nb = 1\r\n\r\n[ hearth.pretrain ] # then\n\"a\"=2\n'b' = 3", "x.toml");
  ASSERT_EQ(items.size(), 3u);
  EXPECT_EQ(items[0].section + "/" + items[0].key, "/b");
  EXPECT_EQ(items[1].section + "/" + items[1].key, "hearth.pretrain/a");
  EXPECT_EQ(items[2].section + "/" + items[2].key, "hearth.pretrain/b");
  EXPECT_TRUE(parse_toml("", "x.toml").empty());
}

// A run's settings are written as JSON strings: TOML reads the same bytes from them.
TEST(IoToml, ReadsBackWhatJsonWrites) {
  std::string every;
  for (int c = 1; c < 128; ++c) every += char(c);
  for (const std::string& s :
       {every, std::string("\u00e9 \U0001F600"), std::string("\\n \\\\ \"\"")})
    EXPECT_EQ(values_of(nlohmann::json(s).dump()), Values{s});
}

TEST(IoToml, ReplacesAndAddsValues) {
  const auto with = [](const char* text) { return with_toml_value(text, "keep", "9"); };
  EXPECT_EQ(with("keep = 3\nother = 1\n"), "keep = 9\nother = 1\n");
  EXPECT_EQ(with("other = 1\n\t\"keep\"=3# three\r\n"), "other = 1\n\t\"keep\"=9# three\r\n");
  EXPECT_EQ(with("keep = [\n  1, # one\n]\n"), "keep = 9\n");
  EXPECT_EQ(with("keeper = 3 # last\n# keep = 4\n"), "keeper = 3 # last\nkeep = 9\n# keep = 4\n");
  EXPECT_EQ(with("keeper = 3"), "keeper = 3\nkeep = 9\n");
  EXPECT_EQ(with("# nothing\n"), "keep = 9\n# nothing\n");
  EXPECT_EQ(with("a = 1\n[pretrain]\nb = 2\n"), "a = 1\nkeep = 9\n[pretrain]\nb = 2\n");
  EXPECT_EQ(with("[pretrain]\nkeep = 2\n"), "[pretrain]\nkeep = 9\n");
}

TEST(IoToml, RefusesWithTheLine) {
  const auto refuses = [](std::string_view text, const std::vector<std::string_view>& parts) {
    for (std::string_view part : parts) expect_error(error_in(text), part);
  };
  refuses("a = 1\nb 2\n", {"[x.toml]", "=", "line 2", "\"2\""});
  refuses("a = 1 2\n", {"end of the line", "line 1", "\"2\""});
  refuses("a = \"x\nb = 1\n", {"the end of the string on the same line", "line 1"});
  refuses("a = \"x", {"the end of the string on the same line"});
  refuses("a = 'x", {"the end of the string on the same line"});
  refuses(R"(a = "\x")", {"escape"});
  refuses(R"(a = "\ud800")", {"escape"});
  refuses(R"(a = "\u12)", {"escape"});
  refuses("a =\n", {"a string, a number", "its end"});
  refuses("a = [1 2]", {", or ]"});
  refuses("a = [1,\n2", {"line 2"});
  refuses("a = {b = 1}", {"a string, a number"});
  refuses("[a\nb = 1", {"heading", "line 1"});
  refuses("= 1", {"a key"});
  refuses("'' = 1", {"a key", "line 1"});
  refuses("\"\" = 1", {"a key"});
  refuses("a = 1\na = 2", {"once", "line 2"});
}

}  // namespace
}  // namespace hearth::test
