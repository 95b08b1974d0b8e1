// Drafts: guesses at what follows, looked up in what a sequence already holds. Text repeats itself;
// a guess is verified in the same step as the token before it, so a wrong one costs one row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hearth {

// Up to `count` tokens that followed the latest earlier place which ends like `tokens` does, over
// the longest stretch of at most four tokens; none when the last token has not been seen before.
std::vector<int32_t> draft(std::span<const int32_t> tokens, int64_t count);

}  // namespace hearth
