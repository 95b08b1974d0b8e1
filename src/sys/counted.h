// A count with its noun in messages: "1 file", "2 files".
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace hearth::inline sys {

// `many` is the plural if it is not `one` and an s.
inline std::string counted(int64_t n, std::string_view one, std::string_view many = {}) {
  if (n == 1 || !many.empty()) return fmt::format("{} {}", n, n == 1 ? one : many);
  return fmt::format("{} {}s", n, one);
}

}  // namespace hearth::inline sys
