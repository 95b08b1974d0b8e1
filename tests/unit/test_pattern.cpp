// The regular expressions of the regex: reward.
#include "align/pattern.h"

#include <gtest/gtest.h>

#include <regex>

#include "core/error.h"

namespace hearth {
namespace {

TEST(Pattern, AgreesWithTheStandardLibraryOnPlainCases) {
  const std::vector<std::string> patterns{"abc",       "^abc$",      "a.c",     "[a-c]+x",
                                          "[^a-c]",    "(ab|cd)*e",  "a{2,3}b", "a{2}",
                                          "^$",        "\\d+\\.\\d", "x?y",     "(a|b)(c|d)$",
                                          "\\bcat\\b", "[\\w-]+@",   "a+?b",    "^\\s*\\d+\\s*$",
                                          "[]a]",      "a|",         "(?:ab)+"};
  const std::vector<std::string> lines{
      "",       "abc", "xabcx", "aac", "aab", "aaab", "cat",   "concat", "a cat!", "12.5", " 42 ",
      "me-1@x", "y",   "xy",    "acd", "bd",  "]",    "cdabe", "e",      "a",      "abab"};
  for (const std::string& p : patterns) {
    const Pattern ours(p);
    const std::regex theirs(p == "[]a]" ? "[\\]a]" : p);
    for (const std::string& line : lines)
      EXPECT_EQ(ours.found_in(line), std::regex_search(line, theirs)) << p << " in " << line;
  }
}

TEST(Pattern, TakesNoLongerOnWhatBacktrackingDiesOf) {
  const std::string many(20000, 'a');
  EXPECT_FALSE(Pattern("(a*)*b$").found_in(many));
  EXPECT_FALSE(Pattern("(a|aa)+$x").found_in(many));
  EXPECT_TRUE(Pattern("(a?){50}a{50}").found_in(many));
  EXPECT_TRUE(Pattern("(x+x+)+y|a$").found_in(many));
  // Nothing, 10^12 times, is nothing.
  EXPECT_TRUE(Pattern("^((((){1000}){1000}){1000}){1000}$").found_in(""));
  EXPECT_FALSE(Pattern("^((((a{0}){1000}){1000}){1000}){1000}$").found_in("a"));
}

TEST(Pattern, EitherCaseBytesAndLineEnds) {
  EXPECT_TRUE(Pattern("(?i)hello [A-C]").found_in("HeLLo b"));
  EXPECT_TRUE(Pattern("\\x41").found_in("A"));
  EXPECT_FALSE(Pattern("a.b").found_in("a\nb"));
  EXPECT_TRUE(Pattern("a\\nb").found_in("a\nb"));
  EXPECT_FALSE(Pattern("^b").found_in("a\nb"));
  EXPECT_TRUE(Pattern("{x}").found_in("a{x}"));
}

TEST(Pattern, RefusesByNameWhatItDoesNotKnow) {
  for (const char* bad : {"(", ")", "a**)", "[a", "\\1", "(?=a)", "(?<n>a)", "*a", "\\", "[b-a]",
                          "a{3,2}", "\\q", "((a{1000}){1000}){1000}", "\\x4"})
    EXPECT_THROW(Pattern{bad}, Error) << bad;
  EXPECT_THROW(Pattern(std::string(5000, '(')), Error);
}

}  // namespace
}  // namespace hearth
