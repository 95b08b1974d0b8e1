// The GRPO loop: rollouts by the engine over the weights in training, rewards, advantages, updates.
// A run that was stopped, by a signal or a crash, goes on from its newest valid checkpoint as if it
// had never stopped: rollouts live in memory alone, so none of older weights can be trained on.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>

#include "align/grpo_config.h"
#include "core/backend.h"

namespace hearth {

struct GrpoRunSpec {
  GrpoConfig config;
  std::filesystem::path run;
  bool resume = false;
  bool quiet = false;
  int64_t stop_after_step = 0;             // save and end after that step; 0: do not
  const std::atomic<int>* stop = nullptr;  // set by a signal handler
  std::function<void(const std::string&)> warn;
};

struct GrpoResult {
  int64_t steps = 0, updates = 0, completions = 0, tokens = 0;
  int64_t unrewarded = 0;        // completions that no reward was had for
  std::optional<double> reward;  // of the last step that had one
  std::optional<double> exact;   // of the last evaluation
  double seconds = 0;
  // Of this process; nothing: it measured none.
  std::optional<double> logprob_gap;  // the largest
  std::optional<double> rollout_tokens_per_s, train_tokens_per_s;
  std::string reason;  // "steps", "target", "stopped"
  std::filesystem::path checkpoint;
};

GrpoResult grpo(const GrpoRunSpec&, Backend&);

}  // namespace hearth
