// RunState: what a training run continues from beside weights and optimizer state. A checkpoint
// holds it as `run` in state/trainer.json; reading checks the range of every field.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/math.h"
#include "formats/state_fields.h"
#include "train/marked_log.h"

namespace hearth::inline train {

constexpr int max_bad_steps = 3;          // in a row, before a run goes back
constexpr size_t spike_window = 128;      // losses that the spike guard compares with
constexpr int64_t max_step = UINT32_MAX;  // what random draws are keyed by
constexpr double max_loss_scale = 1 << 24;
constexpr int64_t loss_scale_window = 1000;  // steps without overflow before the scale doubles

// The part of a run's state that every task has; a task adds its own (Task::save).
struct RunState {
  int64_t step = 0;       // optimizer steps done
  int64_t total = 0;      // steps of the whole run
  int64_t data_step = 0;  // steps' worth of data used: steps that were undone count too
  int64_t tokens = 0;     // trained on
  UpdateState update;
  int64_t reloads = 0;         // times the run went back to a checkpoint
  int64_t good_step = -1;      // the checkpoint a row of bad steps goes back to; -1: none yet
  int64_t spikes = 0;          // of the bad steps in a row, those skipped for their loss alone
  std::vector<double> losses;  // the spike guard's window
  double loss_scale = 65536;   // fp16: what gradients are multiplied by
  int64_t scale_steps = 0;     // steps since it last changed
  int64_t logits_bytes = 0;    // of a chunk of logits: how the head's gradient is added up
  std::optional<double> last_eval, best_eval;  // what the task's evaluations are judged by
  int64_t evaluated = -1;                      // the last step that was evaluated; -1: none yet
  int64_t last_eval_step = -1;                 // the step of last_eval
  int64_t best_step = -1;                      // the checkpoint of best_eval; -1: none yet
  LogMark log, samples;
  double train_seconds = 0;

  nlohmann::json to_json() const;
  static RunState from_json(const StateFields& run);
};

constexpr int trainer_version = 2;

// The whole of a trainer.json: an error unless it is an object of the version that this program
// writes. The JSON must outlive the result.
StateFields trainer_fields(const nlohmann::json& trainer, const std::string& where);

nlohmann::json update_to_json(const UpdateState&);  // as bits, for JSON has no NaN
UpdateState update_of(const StateFields& run);

// Which checkpoints stay beside the newest ones; -1: none.
struct KeptSteps {
  int64_t best = -1, good = -1;
};
KeptSteps kept_steps(const StateFields& run);

}  // namespace hearth::inline train
