// The one exception type. A message reads `[where] expected X, got Y`, with the remedy when known;
// main() turns it into one line and an exit code.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace hearth {

class Error : public std::runtime_error {
 public:
  // `usage` marks a wrong call (exit code 2) rather than a failed one (exit code 1).
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

}  // namespace hearth
