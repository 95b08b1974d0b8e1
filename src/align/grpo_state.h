// What a GRPO run is to go on with, beside weights and moments: state/trainer.json of a checkpoint.
#pragma once

#include <nlohmann/json.hpp>

#include <optional>

#include "align/advantages.h"
#include "core/math.h"

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
  double last_exact = -1;             // below 0: none yet
  std::optional<double> best_reward;  // of evaluations
  int64_t log_bytes = 0, samples_bytes = 0;
  double seconds = 0;

  nlohmann::json to_json() const;
  static GrpoState from_json(const nlohmann::json&, const std::string& where);
};

}  // namespace hearth
