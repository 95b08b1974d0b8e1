// PromptSet: the prompts of a GRPO run as the model is given them, and which of them a step takes.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "data/examples/templates.h"
#include "train/grpo/grpo_config.h"
#include "train/grpo/rollouts.h"
#include "train/trained_model.h"

namespace hearth::inline train {

// The chat template of a run: opened when the first prompt needs it.
struct LazyTemplate {
  ChatForm form;
  const TrainedModel& model;
  std::optional<RunTemplate> opened = {};
  const ChatTemplate& get();
};

class PromptSet {
 public:
  using Warn = std::function<void(const std::string&)>;
  // Prompts that leave no room for a completion are left out, and `warn` is told. At most `most`
  // rows of the file; 0: all.
  PromptSet(const std::string& file, int64_t most, const GrpoConfig&, const TrainedModel&,
            LazyTemplate&, const Warn&);
  PromptSet(PromptSet&&) = delete;  // prompts point at rows

  // The prompts of a step. Every pass over the data has an order of its own; the first goes by the
  // curriculum where there is one.
  std::vector<EncodedPrompt> of_step(int64_t data_step, const GrpoConfig&) const;
  // Orders the first pass by the number that every row has under this name.
  void order_by(const std::string& curriculum, uint64_t seed);

  const std::vector<PromptRow>& rows() const { return rows_; }
  const std::vector<EncodedPrompt>& prompts() const { return prompts_; }
  int64_t longest() const { return longest_; }
  std::string rows_digest() const { return rows_digest_; }
  // Of the tokens of the prompts and of those that end a completion: texts alone do not say it.
  std::string tokens_digest(const std::vector<int32_t>& ends) const;

 private:
  void encode(const std::string& file, const TrainedModel&, const Warn&);

  std::vector<PromptRow> rows_;
  std::vector<EncodedPrompt> prompts_;
  std::vector<size_t> easy_first_;  // places of prompts in the first pass; empty: no curriculum
  std::string rows_digest_;         // of all rows of the file
  int64_t longest_ = 0;             // tokens
};

}  // namespace hearth::inline train
