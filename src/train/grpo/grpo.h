// GRPO: reinforcement learning from rewards for the model's own completions. Rollouts exist only in
// memory, so a resumed run never trains on rollouts of older weights.
#pragma once

#include "train/grpo/grpo_config.h"
#include "train/run.h"

namespace hearth::inline train {

struct GrpoResult : RunResult {
  int64_t updates = 0, completions = 0;
  int64_t unrewarded = 0;        // completions without a reward
  int64_t failed_attempts = 0;   // to score a completion, including those that were retried
  std::optional<double> reward;  // of the last step that had one
  std::optional<double> exact;   // of the last evaluation
  // Measured by this process; nothing: not measured.
  std::optional<double> logprob_gap;  // the largest |trainer - sampler|
  std::optional<double> rollout_tokens_per_s, train_tokens_per_s;
};

GrpoResult grpo(const GrpoConfig&, const RunSpec&, Backend&);

}  // namespace hearth::inline train
