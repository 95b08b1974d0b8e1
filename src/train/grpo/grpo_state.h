// What GRPO continues from beside the state that every run has: `task` in state/trainer.json of a
// checkpoint.
#pragma once

#include <nlohmann/json.hpp>

#include <optional>

#include "formats/state_fields.h"
#include "train/grpo/advantages.h"

namespace hearth::inline train {

struct GrpoState {
  uint64_t version = 0;     // of the weights: updates so far, skipped ones included
  int64_t completions = 0;  // made so far
  int64_t unrewarded = 0;   // completions without a reward so far
  nlohmann::json rewards;   // what the rewards have counted; null: nothing yet
  EmaBaseline ema;
  double beta = 0;                    // of the KL, where it follows a target
  double last_exact = -1;             // of the last evaluation; below 0: none yet
  std::optional<double> last_reward;  // of a step
  int64_t micro_tokens = 0;           // as chosen when the run began

  nlohmann::json to_json() const;
  static GrpoState from_json(const StateFields& task);
};

}  // namespace hearth::inline train
