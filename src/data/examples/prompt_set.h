// PromptSet: the tokenized prompts of a GRPO run, and the choice of prompts for each step.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "data/examples/prompts.h"

namespace hearth::inline data {

// A tokenized prompt, and the row that its rewards read.
struct EncodedPrompt {
  const PromptRow* row;
  std::vector<int32_t> tokens;
};

struct PromptLimits {
  int64_t rows = 0;     // of the file, from its start; 0: all
  int64_t context = 0;  // tokens that a prompt and its completion share
};

class PromptSet {
 public:
  using Warn = std::function<void(const std::string&)>;
  // Leaves out prompts that leave no room for a completion, and calls `warn` about them.
  PromptSet(const std::string& file, const PromptSpec&, const Tokenizer&, const PromptLimits&,
            const Warn&);
  PromptSet(PromptSet&&) = delete;  // prompts point into rows_

  // The `count` prompts of a step. Every pass over the data has its own random order; with a
  // curriculum, the first pass follows it.
  std::vector<EncodedPrompt> of_step(int64_t data_step, int64_t count, uint64_t seed) const;
  // Sorts the first pass by a numeric field that every row must have.
  void order_by(const std::string& curriculum, uint64_t seed);

  const std::vector<PromptRow>& rows() const { return rows_; }
  const std::vector<EncodedPrompt>& prompts() const { return prompts_; }
  int64_t longest() const { return longest_; }
  std::string rows_digest() const { return rows_digest_; }
  // Digest of the tokens of the prompts and of the tokens that end a completion, neither of which
  // the texts determine.
  std::string tokens_digest(const std::vector<int32_t>& ends) const;

 private:
  void encode(const std::string& file, const Tokenizer&, int64_t context, const Warn&);

  std::vector<PromptRow> rows_;
  std::vector<EncodedPrompt> prompts_;
  std::vector<size_t> easy_first_;  // indices of prompts in the first pass; empty: no curriculum
  std::string rows_digest_;         // of all rows of the file
  int64_t longest_ = 0;             // tokens
};

}  // namespace hearth::inline data
