// Model FLOPs under sliding windows.
#include <gtest/gtest.h>

#include "model/config.h"

namespace hearth {
namespace {

TEST(Flops, FollowTheWindow) {
  EXPECT_EQ(mean_keys(512, 0), 256);
  EXPECT_EQ(mean_keys(512, 512), 256);
  EXPECT_EQ(mean_keys(512, 4096), 256);
  EXPECT_EQ(mean_keys(512, 64), 60);
  ModelConfig c = preset("tiny"), windowed = c;
  windowed.window = 64, windowed.window_pattern = "SL";
  const double width = double(c.heads * c.resolve().head_dim);
  EXPECT_NEAR(train_flops_per_token(c, 512) - train_flops_per_token(windowed, 512),
              12 * 3 * width * (256 - 60), 1);
}

}  // namespace
}  // namespace hearth
