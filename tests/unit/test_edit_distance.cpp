// The one edit distance of the program: of misspelled names, and of positions in chess rewards.
#include "sys/edit_distance.h"

#include <gtest/gtest.h>

namespace hearth {
namespace {

TEST(EditDistance, CountsInsertionsDeletionsAndReplacements) {
  for (const Swap swap : {Swap::two_edits, Swap::one_edit}) {
    EXPECT_EQ(edit_distance("", "", swap), 0u);
    EXPECT_EQ(edit_distance("", "abc", swap), 3u);
    EXPECT_EQ(edit_distance("abc", "", swap), 3u);
    EXPECT_EQ(edit_distance("kitten", "sitting", swap), 3u);
    EXPECT_EQ(edit_distance("rms_norm_eps", "rms_norm_epsilon", swap), 4u);
  }
}

// By default two, which the chess rewards and the keys of model files depend on.
TEST(EditDistance, CountsASwapAsOneOrTwo) {
  EXPECT_EQ(edit_distance("ab", "ba"), 2u);
  EXPECT_EQ(edit_distance("ab", "ba", Swap::one_edit), 1u);
  EXPECT_EQ(edit_distance("vcoab", "vocab"), 2u);
  EXPECT_EQ(edit_distance("vcoab", "vocab", Swap::one_edit), 1u);
  EXPECT_EQ(edit_distance("abcd", "badc", Swap::one_edit), 2u);
  EXPECT_EQ(edit_distance("ca", "abc", Swap::one_edit), 3u);  // no edit between swapped neighbours
}

}  // namespace
}  // namespace hearth
