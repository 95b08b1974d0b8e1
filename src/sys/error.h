// The only exception type. A message for a value reads `[where] expected X, got Y`; a message for a
// state is a sentence. Both add the remedy when it is known. main() prints one line and sets the
// exit code.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace hearth::inline sys {

class Error : public std::runtime_error {
 public:
  // `usage` marks a wrong command line (exit code 2) instead of a failed command (exit code 1).
  Error(std::string_view where, std::string_view what, bool usage = false)
      : std::runtime_error(fmt::format("[{}] {}", where, what)), usage_(usage) {}
  bool usage() const { return usage_; }

 private:
  bool usage_;
};

template <class... A>
[[noreturn]] void fail(std::string_view where, fmt::format_string<A...> what, A&&... args) {
  throw Error(where, fmt::format(what, std::forward<A>(args)...));
}

// For a wrong flag, key or argument: exit code 2.
template <class... A>
[[noreturn]] void fail_usage(std::string_view where, fmt::format_string<A...> what, A&&... args) {
  throw Error(where, fmt::format(what, std::forward<A>(args)...), true);
}

}  // namespace hearth::inline sys
