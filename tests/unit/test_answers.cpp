// The number that a text answers with, exactly or nearly.
#include "rewards/answers.h"

#include <gtest/gtest.h>

#include "rewards/rewards.h"
#include "test_data.h"

namespace hearth {
namespace {

TEST(Answers, TheNumberATextAnswersWith) {
  const auto is = [](std::string_view text, const char* wanted) {
    const auto n = answer_number(text);
    EXPECT_EQ(n.value_or("none"), wanted) << text;
  };
  is("so 3 + 4 = 7\n#### 7", "7");
  is("#### 1,234", "1234");
  is("#### $1,234.50 dollars", "1234.5");
  is("####-12", "-12");
  is("#### 7 and then 9", "7");
  is("#### 3\n#### 4", "3");
  is("#### Step 1\n...\n#### 42", "42");
  is("#### answer: 12", "none");
  is("#### Q1: how many\n#### 42", "42");
  is("#### No 7\n#### 42", "42");
  is("#### \xe2\x88\x92"
     "42",
     "-42");
  is("##### 5", "5");
  is("#### none", "none");
  is("The answer is 18.", "18");
  is("He has 3, or 4.", "4");
  is("1,2,3", "3");
  is("12,3456", "3456");
  is("10-3", "3");
  is("it fell to -3.50 degrees", "-3.5");
  is("(5)-2", "2");
  is("costs -$5", "-5");
  is("\xe2\x88\x92"
     "42",
     "-42");
  is(".5", "0.5");
  is("007", "7");
  is("0.0", "0");
  is("-0", "0");
  is("77.0", "77");
  is("no number", "none");
  is("", "none");
  is("####", "none");
  is("1e5", "100000");
  is("5e-05", "0.00005");
  is("1.5e3", "1500");
  is("2.50E+1 m", "25");
  is("12e", "12");
  is("3em", "3");
  is("1e9999", "1");
  is("so 3/7", "3/7");
  is("-1/7 of it", "-1/7");
  is("4/1", "4");
  is("1/0", "0");
  is("it costs 10/2.50", "2.5");
  is("1/2e3", "2000");
  is("on 11/16/2026", "2026");
  is("18 m2", "18");
  is("x1", "1");
  is("$2,125.", "2125");
}

TEST(Answers, ExactlyOrNearly) {
  EXPECT_TRUE(equal_number("#### 18", "She makes 18.\n#### 18.0"));
  EXPECT_FALSE(equal_number("#### 18.01", "#### 18"));
  EXPECT_FALSE(equal_number("", "#### 18"));
  EXPECT_FALSE(equal_number("3/7", "1/7"));
  EXPECT_TRUE(equal_number("it is 2/6", "1/3"));
  EXPECT_TRUE(equal_number("0.25", "1/4"));
  EXPECT_FALSE(equal_number("0.333", "1/3"));
  EXPECT_FALSE(near_number("-5", "5e-05", 1e-3));
  EXPECT_TRUE(near_number("0.00005", "5e-05", 1e-9));
  EXPECT_TRUE(near_number("0.333", "1/3", 1e-3));
  EXPECT_TRUE(near_number("The answer is 0.3333", "0.33333333", 1e-3));
  EXPECT_FALSE(near_number("0.32", "0.33333333", 1e-3));
  EXPECT_FALSE(near_number(std::string(400, '9'), "9", 1e-3));
}

// The worked solutions that come with these sets end with their number; about one in twenty is
// wrong.
TEST(Answers, OfRealWordProblems) {
  struct Set {
    const char* name;
    size_t rows;
    bool worked;  // its rows hold solutions
  };
  for (const auto& [name, rows, worked] :
       {Set{"AddSub-test.json", 395, true}, Set{"MultiArith-test.json", 600, true},
        Set{"SingleEq-test.json", 508, true}, Set{"mawps-trainset.json", 1898, false}}) {
    const std::vector<PromptRow> all =
        read_prompts(test::test_data("grpo/" + std::string(name)), {.form = "{}\n"});
    EXPECT_EQ(all.size(), rows) << name;
    Rewards({.rewards = {"near"}}).check(all);
    size_t near = 0, solved = 0;
    for (const PromptRow& row : all) {
      if (!row.row.contains("output")) continue;
      ++solved;
      near += near_number(row.row["output"].get<std::string>(), *row.answer(), 1e-3);
    }
    EXPECT_EQ(solved, worked ? rows : 0) << name;
    EXPECT_GE(double(near), 0.9 * double(solved)) << name;
  }
}

}  // namespace
}  // namespace hearth
