// Removes white space from both ends of a text.
#pragma once

#include <algorithm>
#include <string_view>

namespace hearth::inline sys {

inline std::string_view trimmed(std::string_view text) {
  constexpr std::string_view space = " \t\n\v\f\r";
  text.remove_prefix(std::min(text.find_first_not_of(space), text.size()));
  return text.substr(0, text.find_last_not_of(space) + 1);
}

}  // namespace hearth::inline sys
