#include "data/examples/example_counts.h"

#include <fmt/format.h>

namespace hearth::inline data {

std::vector<std::string> ExampleCounts::left_out(int64_t max_length) const {
  std::vector<std::string> lines;
  const auto add = [&](int64_t rows, const std::string& why) {
    if (rows) lines.push_back(fmt::format("{} of {} rows left out: {}", rows, read, why));
  };
  add(unanswered, "no turn of the assistant to learn in them");
  add(blank, "no text to learn in them");
  add(cut_off, fmt::format("their prompts fill all {} tokens of --max-length", max_length));
  add(equal, "both answers are equal");
  return lines;
}

std::vector<std::string> ExampleCounts::notes(int64_t max_length) const {
  std::vector<std::string> lines;
  const auto add = [&](int64_t rows, const std::string& what) {
    if (rows) lines.push_back(fmt::format("{} of {} rows {}", rows, read, what));
  };
  add(cut, fmt::format("cut at {} tokens", max_length));
  add(split, fmt::format("split into {} of at most {} tokens", pieces, max_length));
  add(empty, "have an empty answer: they teach only the end of a text");
  add(spelled, fmt::format("spell a special token, the first in {}: they are learned as "
                           "characters; --special-tokens takes them for the tokens",
                           spelled_in));
  return lines;
}

}  // namespace hearth::inline data
