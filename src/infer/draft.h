// Prompt lookup: drafts the next tokens from earlier text of the sequence. Text repeats itself;
// drafts are verified in the same step as the current token, so a wrong one costs one row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hearth::inline infer {

// Guesses per step if --draft lookup is given without their number.
inline constexpr int64_t lookup_guesses = 4;

// `count` tokens: those that followed the latest earlier match of the end of `tokens`, for the
// longest match of at most four tokens, over and over if they are fewer. Empty if the last token
// has not occurred before.
std::vector<int32_t> draft(std::span<const int32_t> tokens, int64_t count);

}  // namespace hearth::inline infer
