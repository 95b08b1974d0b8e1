#include "infer/draft.h"

#include <algorithm>

namespace hearth::inline infer {

std::vector<int32_t> draft(std::span<const int32_t> tokens, int64_t count) {
  constexpr size_t longest = 4;
  size_t best = 0, after = 0;  // length of the match, and start of the draft
  for (size_t end = tokens.size() - 1; end > 0 && best < longest; --end) {
    size_t same = 0;
    while (same < std::min(end, longest) &&
           tokens[end - 1 - same] == tokens[tokens.size() - 1 - same])
      ++same;
    if (same > best) best = same, after = end;
  }
  if (best == 0) return {};
  // The end repeats what is `period` tokens before it; a longer guess goes on repeating it.
  const size_t period = tokens.size() - after;
  std::vector<int32_t> guess;
  for (size_t i = 0; i < size_t(count); ++i) guess.push_back(tokens[after + i % period]);
  return guess;
}

}  // namespace hearth::inline infer
