// Generated arithmetic: sums and small word problems whose answers are known, as text to pretrain
// on, rows for SFT and prompts for GRPO. A problem is in the training files or held out by a hash
// of what it asks, so no form of it is on both sides, its operands turned round included.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace hearth {

struct ArithmeticSpec {
  int digits = 2;         // of each operand, 1 to 6; the first is no 0 beyond one digit
  std::string ops = "+";  // any of + - *; a difference is never below 0
  bool words = false;     // word problems instead of 12+34=
  int64_t problems = 0;   // different ones; 0: all there are, for sums of up to 2 digits
  double held_out = 0.1;  // share
  uint64_t seed = 1;      // of which problems, their order and their words
};

struct Problem {
  std::string prompt;      // "12+34=", or a question that ends with "Answer:"
  std::string completion;  // "46", or " 46"
  std::string answer;      // "46"
  std::string wrong;       // a completion that is not right, as slips are: " 36"
};

struct ArithmeticSet {
  std::vector<Problem> train, held_out;
};
ArithmeticSet make_arithmetic(const ArithmeticSpec&);

// In a folder: pretrain.txt (documents of prompt and completion), sft.jsonl {"prompt",
// "completion"}, preferences.jsonl {"prompt", "chosen", "rejected"}, prompts.jsonl {"prompt",
// "answer"}, and of those held out heldout.txt, heldout.jsonl {"prompt", "completion", "answer"}.
// Each file appears whole or not at all.
void write_arithmetic(const std::filesystem::path& folder, const ArithmeticSet&);

}  // namespace hearth
