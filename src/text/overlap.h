// Where a text that arrives in pieces may hold the beginning of a word that is searched in it.
#pragma once

#include <algorithm>
#include <string_view>

namespace hearth::inline text {

// The length of the longest suffix of `text` that is a proper prefix of `word`.
inline size_t overlap(std::string_view text, std::string_view word) {
  size_t n = word.empty() ? 0 : std::min(text.size(), word.size() - 1);
  while (n > 0 && !text.ends_with(word.substr(0, n))) --n;
  return n;
}

}  // namespace hearth::inline text
