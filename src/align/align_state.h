// What an SFT or DPO run goes on with beside weights and moments: `run` in the state/trainer.json
// of a checkpoint.
#pragma once

#include <optional>

#include "train/run_state.h"

namespace hearth {

struct AlignState {
  int64_t step = 0, tokens = 0;
  UpdateState update;
  std::optional<double> best_val, last_val;
  std::optional<int64_t> last_val_step;   // nothing: none yet, or not known
  std::optional<int64_t> best_step = -1;  // with best_val; -1: none yet; nothing: not known
  LogMark log;
  double train_seconds = 0;

  nlohmann::json to_json() const;
  static AlignState from_json(const StateFields& run);
};

}  // namespace hearth
