// GRPO: the task of learning from the model's own completions by rewards. Rollouts live in memory
// alone, so a resumed run never trains on those of older weights.
#pragma once

#include "train/grpo/grpo_config.h"
#include "train/run.h"

namespace hearth::inline train {

struct GrpoResult : RunResult {
  int64_t updates = 0, completions = 0;
  int64_t unrewarded = 0;        // completions without a reward
  std::optional<double> reward;  // of the last step that had one
  std::optional<double> exact;   // of the last evaluation
  // Of this process; nothing: it measured none.
  std::optional<double> logprob_gap;  // the largest
  std::optional<double> rollout_tokens_per_s, train_tokens_per_s;
};

GrpoResult grpo(const GrpoConfig&, const RunSpec&, Backend&);

}  // namespace hearth::inline train
