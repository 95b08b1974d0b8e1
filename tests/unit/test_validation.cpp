// How many tokens a run validates on by default.
#include "data/validation_batches.h"

#include <gtest/gtest.h>

namespace hearth {
namespace {

TEST(Validation, DefaultTokensFollowTheStep) {
  EXPECT_EQ(default_eval_tokens(64), 4096);
  EXPECT_EQ(default_eval_tokens(100), 4096);
  EXPECT_EQ(default_eval_tokens(1024), 65536);
  EXPECT_EQ(default_eval_tokens(16384), 1 << 20);
  EXPECT_EQ(default_eval_tokens(int64_t(1) << 40), 1 << 20);
}

}  // namespace
}  // namespace hearth
