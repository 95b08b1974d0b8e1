// Prompt lookup: what it guesses from the text so far.
#include <gtest/gtest.h>

#include "infer/draft.h"

namespace hearth {
namespace {

using Tokens = std::vector<int32_t>;

Tokens guess(const Tokens& text, int64_t count) { return draft(text, count); }

TEST(LookupDraft, TakesWhatFollowedTheLongestMatch) {
  EXPECT_EQ(guess({1, 2, 3, 4, 9, 1, 2}, 2), Tokens({3, 4}));
  // The longer match is the earlier one.
  EXPECT_EQ(guess({1, 2, 3, 7, 2, 4, 1, 2}, 1), Tokens({3}));
  // Of equal matches the latest counts.
  EXPECT_EQ(guess({5, 6, 5, 7, 5}, 1), Tokens({7}));
  EXPECT_EQ(guess({1, 2, 3}, 4), Tokens());
  EXPECT_EQ(guess({1}, 4), Tokens());
}

// The latest match of a text that repeats itself is followed by one period only.
TEST(LookupDraft, RepeatsAPeriodUpToTheWholeGuess) {
  EXPECT_EQ(guess({8, 5, 5, 5, 5, 5, 5}, 8), Tokens(8, 5));
  EXPECT_EQ(guess({1, 2, 1, 2, 1, 2, 1}, 5), Tokens({2, 1, 2, 1, 2}));
  EXPECT_EQ(guess({4, 1, 2, 3, 1, 2, 3, 1, 2, 3}, 8), Tokens({1, 2, 3, 1, 2, 3, 1, 2}));
}

}  // namespace
}  // namespace hearth
