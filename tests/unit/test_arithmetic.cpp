// Generated arithmetic: each problem once, on one side, with its right answer.
#include "tasks/arithmetic/arithmetic.h"

#include <gtest/gtest.h>

#include <set>

#include "reward_case.h"
#include "sys/error.h"
#include "sys/files/files.h"

namespace hearth {
namespace {

TEST(Arithmetic, EverySumOnceAndOnOneSide) {
  const ArithmeticSet set = make_arithmetic({});
  EXPECT_EQ(set.train.size() + set.held_out.size(), 8100u);
  EXPECT_NEAR(double(set.held_out.size()), 810, 100);
  std::set<std::string> seen;
  for (const auto* side : {&set.train, &set.held_out})
    for (const Problem& p : *side) {
      EXPECT_TRUE(seen.insert(p.prompt).second);
      const int a = std::stoi(p.prompt), b = std::stoi(p.prompt.substr(3));
      EXPECT_EQ(p.answer, std::to_string(a + b));
      EXPECT_EQ(p.completion, p.answer);
      EXPECT_NE(p.wrong, p.answer);
    }
  EXPECT_NE(set.train[0].prompt, make_arithmetic({.seed = 2}).train[0].prompt);
}

TEST(Arithmetic, WhatIsHeldOutIsNotTrainedOnTurnedRound) {
  for (const char op : {'+', '*'}) {
    const ArithmeticSet set = make_arithmetic({.ops = std::string(1, op)});
    std::set<std::string> trained;
    for (const Problem& p : set.train) trained.insert(p.prompt);
    for (const Problem& p : set.held_out)
      EXPECT_FALSE(trained.contains(p.prompt.substr(3, 2) + op + p.prompt.substr(0, 2) + "="))
          << p.prompt;
  }
}

TEST(Arithmetic, WordProblemsHoldTheirNumbers) {
  const ArithmeticSpec spec{.digits = 3, .ops = "+-*", .words = true, .problems = 500, .seed = 4};
  const ArithmeticSet set = make_arithmetic(spec);
  EXPECT_EQ(set.train.size() + set.held_out.size(), 500u);
  EXPECT_EQ(set.train[7].prompt, make_arithmetic(spec).train[7].prompt);
  for (const Problem& p : set.train) {
    EXPECT_TRUE(p.prompt.ends_with("\nAnswer:"));
    EXPECT_EQ(p.completion, " " + p.answer);
    EXPECT_NE(p.answer[0], '-');
  }
}

TEST(Arithmetic, RefusesWhatCannotBe) {
  for (const ArithmeticSpec& s :
       {ArithmeticSpec{.digits = 0}, ArithmeticSpec{.digits = 3}, ArithmeticSpec{.ops = "/"},
        ArithmeticSpec{.ops = "++"}, ArithmeticSpec{.held_out = 1},
        ArithmeticSpec{.problems = 1000000}})
    EXPECT_THROW(make_arithmetic(s), Error);
}

TEST(Arithmetic, FilesArePromptsAndText) {
  RewardFolder folder;
  write_arithmetic(folder.path / "sums", make_arithmetic({.digits = 1}));
  const auto prompts = read_prompts(folder.path / "sums" / "prompts.jsonl");
  const auto held_out = read_prompts(folder.path / "sums" / "heldout.jsonl");
  EXPECT_EQ(prompts.size() + held_out.size(), 100u);
  EXPECT_TRUE(held_out[0].answer());
  const std::string text = read_file(folder.path / "sums" / "pretrain.txt");
  EXPECT_TRUE(text.starts_with(prompts[0].prompt + *prompts[0].answer() + "\n<|endoftext|>\n"));
}

}  // namespace
}  // namespace hearth
