// What a GRPO run goes on with beside weights and moments: `run` in the state/trainer.json of a
// checkpoint.
#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>

#include "align/advantages.h"
#include "train/run_state.h"

namespace hearth {

struct GrpoState {
  int64_t step = 0;
  uint64_t version = 0;                 // of the weights: updates so far, skipped ones included
  int64_t completions = 0, tokens = 0;  // made so far
  int64_t unrewarded = 0;               // completions without a reward so far
  nlohmann::json rewards;               // what they have counted; null: nothing yet
  int64_t evaluated = -1;               // the last step with an evaluation; below 0: none yet
  EmaBaseline ema;
  double beta = 0;  // of the KL, where it follows a target
  UpdateState update;
  double last_exact = -1;                 // below 0: none yet
  std::optional<double> last_reward;      // of a step
  std::optional<double> best_reward;      // of evaluations
  std::optional<int64_t> best_step = -1;  // with it; -1: none yet; nothing: not known
  LogMark log, samples;
  double seconds = 0;

  nlohmann::json to_json() const;
  static GrpoState from_json(const StateFields& run);
};

}  // namespace hearth
