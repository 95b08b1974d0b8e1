// Counts of the rows that examples were read from, and what a run says of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hearth::inline data {

struct ExampleCounts {
  std::string files;  // where the rows are, for errors
  int64_t read = 0;   // rows
  // Rows left out, each counted once: no assistant turn to learn; no text to learn; the answer
  // starts after max_length; two equal answers.
  int64_t unanswered = 0, blank = 0, cut_off = 0, equal = 0;
  // Rows that are kept: truncated at max_length; with an answer that has no text, only an end.
  int64_t cut = 0, empty = 0;
  int64_t split = 0, pieces = 0;  // texts longer than max_length, and the examples made of them
  int64_t rendered = 0;           // rows that went through the chat template
  int64_t spelled = 0;            // rows that spell a special token
  std::string spelled_in;         // where the first of them is

  // A line for each reason to leave rows out.
  std::vector<std::string> left_out(int64_t max_length) const;
  // A line for everything else that the user should know of the rows.
  std::vector<std::string> notes(int64_t max_length) const;
};

}  // namespace hearth::inline data
