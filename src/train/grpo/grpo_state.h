// What GRPO continues from besides the RunState: `task` in state/trainer.json of a checkpoint.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "formats/state_fields.h"
#include "train/grpo/advantages.h"

namespace hearth::inline train {

struct GrpoState {
  uint64_t version = 0;     // version of the weights: updates so far, including skipped ones
  int64_t completions = 0;  // so far
  int64_t unrewarded = 0;   // completions without a reward so far
  nlohmann::json rewards;   // the counters of the rewards; null: nothing counted yet
  EmaBaseline ema;
  double beta = 0;                    // current weight of the KL, which may follow a target
  double last_exact = -1;             // of the last evaluation; below 0: none yet
  std::optional<double> last_reward;  // of the last step that had rewards
  int64_t micro_tokens = 0;           // as chosen when the run began

  nlohmann::json to_json() const { return state_to_json(*this); }
  static GrpoState from_json(const StateFields& task) { return state_from_json<GrpoState>(task); }
  template <class S, class V>
  static void visit(S& s, V&& v) {
    v("version", s.version);
    v("completions", s.completions);
    v("unrewarded", s.unrewarded, 0, s.completions);
    v("rewards", s.rewards);
    v("ema", s.ema.mean);
    v("beta", s.beta, 0);
    v("last_exact", s.last_exact, -1, 1);
    v("last_reward", s.last_reward);
    v("micro_tokens", s.micro_tokens, 1);
  }
};

}  // namespace hearth::inline train
