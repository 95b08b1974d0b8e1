// Generated arithmetic: operations and small word problems with known answers, as pretraining text,
// SFT rows and GRPO prompts. A hash of the question decides whether a problem is held out, so no
// form of it (including swapped operands) is on both sides.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace hearth::inline tasks {

struct ArithmeticSpec {
  int digits = 2;         // per operand, 1 to 6; no leading zeros
  std::string ops = "+";  // any of + - *; differences are never negative
  bool words = false;     // word problems instead of 12+34=
  int64_t problems = 0;   // number of distinct problems; 0: all, up to 2 digits
  double held_out = 0.1;  // fraction
  uint64_t seed = 1;      // chooses problems, order and words
};

struct Problem {
  std::string prompt;      // "12+34=", or a question that ends with "Answer:"
  std::string completion;  // "46", or " 46"
  std::string answer;      // "46"
  std::string wrong;       // a typical wrong completion: " 36"
};

struct ArithmeticSet {
  std::vector<Problem> train, held_out;
};
ArithmeticSet make_arithmetic(const ArithmeticSpec&);

// Writes to a folder: pretrain.txt (documents of prompt and completion), sft.jsonl {"prompt",
// "completion"}, preferences.jsonl {"prompt", "chosen", "rejected"}, prompts.jsonl {"prompt",
// "answer"}, and for held-out problems heldout.txt and heldout.jsonl {"prompt", "completion",
// "answer"}. Each file is written atomically.
inline constexpr const char* arithmetic_files[] = {"pretrain.txt",      "sft.jsonl",
                                                   "preferences.jsonl", "prompts.jsonl",
                                                   "heldout.txt",       "heldout.jsonl"};
void write_arithmetic(const std::filesystem::path& folder, const ArithmeticSet&);

}  // namespace hearth::inline tasks
