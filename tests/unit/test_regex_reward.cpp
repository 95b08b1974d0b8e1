// The reward regex: what a pattern may say, and that a search ends whatever the pattern and the
// text.
#include <gtest/gtest.h>

#include "rewards/regex.h"
#include "rewards/rewards.h"
#include "sys/error.h"

namespace hearth {
namespace {

class RegexRewards : public testing::Test {
 protected:
  void SetUp() override {
    if (!*regex_library()) GTEST_SKIP() << "built without PCRE2";
  }

  GroupScores score(Rewards& rewards, std::initializer_list<std::string> texts) const {
    std::vector<RewardText> all;
    for (const std::string& s : texts) all.push_back({s, int64_t(s.size())});
    return rewards.submit(row, std::move(all)).get().total;
  }
  GroupScores score(const std::string& reward, std::initializer_list<std::string> texts) const {
    Rewards rewards({.rewards = {reward}});
    return score(rewards, texts);
  }
  bool found(const std::string& pattern, const std::string& text) const {
    return score("regex:" + pattern, {text}) == GroupScores{1};
  }

  const PromptRow row{{{"prompt", "q"}}, "q", "test:1"};
};

std::string refusal(const std::string& reward) {
  try {
    const Rewards rewards({.rewards = {reward}});
  } catch (const Error& e) { return e.what(); }
  return "";
}

TEST_F(RegexRewards, ScoreWhereThePatternIsFound) {
  EXPECT_EQ(score("regex:^[0-9]+$@0.5", {"46", "is 46", "5"}), (GroupScores{0.5, 0, 0.5}));
  EXPECT_EQ(score("regex:a@b", {"a@b", "ab"}), (GroupScores{1, 0}));
  EXPECT_EQ(score("regex:a:b", {"a:b", "ab"}), (GroupScores{1, 0}));
  EXPECT_EQ(score("regex:", {"", "a"}), (GroupScores{1, 1}));
  EXPECT_TRUE(found("(?i)hello [A-C]", "HeLLo b"));
  EXPECT_FALSE(found("a.b", "a\nb"));
  EXPECT_TRUE(found("(?s)a.b", "a\nb"));
  EXPECT_FALSE(found("^b", "a\nb"));
  EXPECT_TRUE(found("(?m)^b", "a\nb"));
  EXPECT_TRUE(found("b$", "ab\n"));  // as in Perl and Python
  EXPECT_FALSE(found("b\\z", "ab\n"));
  EXPECT_TRUE(found(std::string("a\0b", 3), std::string("xa\0b", 4)));
}

TEST_F(RegexRewards, LookAroundAndBackReferences) {
  const std::string format = "(?s)^<think>(?!.*<think>).*?</think>\\s*<answer>.*?</answer>$";
  EXPECT_TRUE(found(format, "<think>\n2 + 2\n</think>\n<answer>4</answer>"));
  EXPECT_FALSE(found(format, "<think><think>2</think>\n<answer>4</answer>"));
  EXPECT_FALSE(found(format, "<answer>4</answer>"));
  EXPECT_TRUE(found("^(?=.*\\d)(?=.*[a-z]).{3}$", "ab1"));
  EXPECT_FALSE(found("^(?=.*\\d)(?=.*[a-z]).{3}$", "abc"));
  EXPECT_EQ(score("regex:(?<!un)likely", {"likely", "unlikely"}), (GroupScores{1, 0}));
  EXPECT_EQ(score("regex:\\b(\\w+) \\1\\b", {"the the", "the then"}), (GroupScores{1, 0}));
}

TEST_F(RegexRewards, ReadUtf8) {
  EXPECT_TRUE(found("^.$", "\u00e9"));
  EXPECT_TRUE(found("^\\w+$", "\u00e9t\u00e9"));
  EXPECT_TRUE(found("(?i)\u00c9", "\u00e9"));
  EXPECT_TRUE(found("^\\p{Han}{2}$", "\u4f60\u597d"));
  EXPECT_TRUE(found("[\u03b1-\u03c9]", "x = \u03b2"));
  // A completion may end within a character; its whole characters can still match.
  EXPECT_TRUE(found("ab", "ab\xe2\x82"));
  EXPECT_FALSE(found("a.c",
                     "a\xff"
                     "c"));
  EXPECT_FALSE(found("^c",
                     "\xff"
                     "c"));
}

TEST_F(RegexRewards, InvalidPatternsAreNamedAtTheStart) {
  for (const char* bad : {"(", ")", "[a", "*a", "\\", "[b-a]", "a{3,2}", "\\q", "(?<n", "\\1"})
    EXPECT_NE(refusal("regex:" + std::string(bad)).find("expected a regular expression"),
              std::string::npos)
        << bad;
  EXPECT_EQ(refusal("regex:a(b"),
            "[reward] expected a regular expression after regex:, got \"a(b\": missing closing "
            "parenthesis (byte 3)");
  EXPECT_NE(refusal("regex:\xff"), "");
  EXPECT_NE(refusal("regex:\\C"), "");  // would cut characters
  // Too large for the compiler, in depth, in repeats and in bytes.
  EXPECT_NE(refusal("regex:" + std::string(5000, '(')), "");
  EXPECT_NE(refusal("regex:((a{1000}){1000}){1000}"), "");
  EXPECT_NE(refusal("regex:^((((){1000}){1000}){1000}){1000}$"), "");
  EXPECT_NE(refusal("regex:" + std::string(100000, 'a')), "");
}

// Both would search for minutes or longer: the first takes 2^n steps from one position, the second
// n steps from each of n.
TEST_F(RegexRewards, ASearchOfTooManyStepsHasNoReward) {
  const std::string line(130000, 'a');
  EXPECT_EQ(score("regex:^(a+)+$", {line, line + "!"}), (GroupScores{1, {}}));
  EXPECT_EQ(score("regex:(?:a|b)*$", {"ab", line + "!!"}), (GroupScores{1, {}}));
  // What the pattern asks for does not move the limit.
  EXPECT_EQ(score("regex:(*LIMIT_MATCH=4000000000)^(a+)+$", {line + "!"}), GroupScores(1));
}

// Each character takes a frame of about 150 bytes until the c is found.
TEST_F(RegexRewards, ASearchOfTooMuchMemoryHasNoReward) {
  const auto text = [](size_t n) { return std::string(n, 'a') + "c"; };
  EXPECT_EQ(score("regex:^(?:a|b)*c", {text(100000), text(3000000)}), (GroupScores{1, {}}));
}

TEST_F(RegexRewards, SearchesThatReachTheLimitAreCounted) {
  const std::string bad = std::string(40, 'a') + "!";
  std::vector<std::string> warnings;
  const RewardSpec spec{.rewards = {"regex:(*LIMIT_MATCH=1000)^(a+)+$", "length:99"},
                        .workers = 1,
                        .max_failures = 3,
                        .warn = [&](const std::string& line) { warnings.push_back(line); }};
  Rewards first(spec);
  EXPECT_TRUE(first.troubles().empty());
  EXPECT_EQ(score(first, {"a", bad, bad}), (GroupScores{2, {}, {}}));
  EXPECT_EQ(first.failed(), 2);
  EXPECT_EQ(first.troubles()["regex"]["failed"], 2);
  ASSERT_EQ(first.failures().size(), 1u);
  EXPECT_EQ(first.failures()[0].name, "regex");
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("(a+)+"), std::string::npos) << warnings[0];

  Rewards second(spec);  // a resumed run goes on counting
  second.count_on(nlohmann::json::parse(first.counted().dump()), "here");
  EXPECT_EQ(score(second, {bad}), GroupScores(1));
  EXPECT_THROW(score(second, {bad}), Error);
}

TEST(RegexLibrary, IsNamedWhereItIsMissing) {
  const bool missing = refusal("regex:a").find("libpcre2-dev") != std::string::npos;
  EXPECT_EQ(missing, std::string(regex_library()).empty());
}

}  // namespace
}  // namespace hearth
