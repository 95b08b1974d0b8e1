// Stop strings over text that comes in pieces.
#include <gtest/gtest.h>

#include "infer/stop_text.h"
#include "test_data.h"

namespace hearth {
namespace {

struct Outcome {
  std::string text;
  bool stopped;
  bool operator==(const Outcome&) const = default;
};

// The pieces are given by the bits of `cuts`: a cut after byte i if bit i is set.
Outcome feed(const std::vector<std::string>& stops, const std::string& text, unsigned cuts) {
  StopText s(stops);
  std::string out, piece;
  for (size_t i = 0; i < text.size() && !s.stopped(); ++i) {
    piece += text[i];
    if (i + 1 < text.size() && !(cuts >> i & 1)) continue;
    out += s.push(piece);
    piece.clear();
  }
  const bool stopped = s.stopped();
  return {out + s.finish(), stopped};
}

TEST(StopText, IsTheSameHoweverTheTextIsCut) {
  struct Case {
    std::vector<std::string> stops;
    std::string text;
    Outcome want;
  };
  for (const Case& c :
       {Case{{"END"}, "fooENDbar", {"foo", true}}, Case{{"END"}, "fooENEN", {"fooENEN", false}},
        Case{{"aab"}, "aaaab!", {"aa", true}}, Case{{"abc", "b"}, "xabc", {"xa", true}},
        Case{{"bc", "abc"}, "xabc", {"x", true}}, Case{{"abcd", "bd"}, "xabcabd", {"xabca", true}},
        Case{{"\n\n"}, "a\nb\n\nc", {"a\nb", true}}, Case{{"x"}, "x", {"", true}},
        Case{{"xyz"}, "xy", {"xy", false}}}) {
    for (unsigned cuts = 0; cuts < 1u << (c.text.size() - 1); ++cuts) {
      const Outcome got = feed(c.stops, c.text, cuts);
      ASSERT_EQ(got.text, c.want.text) << c.text << " cut " << cuts;
      ASSERT_EQ(got.stopped, c.want.stopped) << c.text << " cut " << cuts;
    }
  }
}

TEST(StopText, HoldsBackNoMoreThanItMust) {
  StopText s({"stop", "\n\n"});
  EXPECT_EQ(s.push("a st"), "a ");
  EXPECT_EQ(s.push("a"), "sta");
  EXPECT_EQ(s.push("\n"), "");
  EXPECT_EQ(s.push("s"), "\n");
  EXPECT_EQ(s.push("top more"), "");
  EXPECT_TRUE(s.stopped());
  EXPECT_EQ(s.push("more"), "");
  EXPECT_EQ(s.finish(), "");
}

TEST(StopText, SeesNothingUntilArmed) {
  StopText s({"ab"});
  EXPECT_EQ(s.push("ab a", false), "ab a");
  EXPECT_EQ(s.push("b", true), "b");  // its beginning has gone out
  EXPECT_EQ(s.push("ab", true), "");
  EXPECT_TRUE(s.stopped());
}

TEST(StopText, WithoutStopsPassesAll) {
  StopText s({});
  EXPECT_EQ(s.push("anything"), "anything");
  EXPECT_EQ(s.finish(), "");
}

TEST(TokenText, AfterBosHasNoDummySpace) {
  const Tokenizer tokenizer = Tokenizer::load(test::test_data("models/story/tok512.bin"));
  const std::vector<int32_t> ids = tokenizer.encode("Once upon");  // bos first
  ASSERT_EQ(ids[0], tokenizer.bos());
  for (size_t begin : {size_t(1), ids.size() - 1}) {
    TokenText text(&tokenizer, {}, std::span(ids).first(begin));
    std::string got;
    for (size_t i = begin; i < ids.size(); ++i) got += text.push(ids[i], true);
    got += text.finish();
    EXPECT_EQ(got, begin == 1 ? "Once upon" : tokenizer.bytes_of(ids.back())) << begin;
  }
}

}  // namespace
}  // namespace hearth
