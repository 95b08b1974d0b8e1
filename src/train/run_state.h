// What a training run goes on with beside weights and moments, as state/trainer.json of a
// checkpoint holds it: reading checks the range of every field.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/math.h"
#include "data/loader.h"
#include "io/state_fields.h"
#include "train/marked_log.h"

namespace hearth {

constexpr int max_bad_steps = 3;          // in a row, before a run goes back
constexpr size_t spike_window = 128;      // losses that the spike guard compares with
constexpr int64_t max_step = UINT32_MAX;  // what random draws are keyed by
constexpr double max_loss_scale = 1 << 24;
constexpr int64_t loss_scale_window = 1000;  // steps without overflow before the scale doubles

// Of a pretraining run.
struct RunState {
  int64_t step = 0;    // optimizer steps done
  int64_t tokens = 0;  // trained on
  Cursor cursor;
  std::string data;  // fingerprint of the files that the cursor is of; empty: not known
  UpdateState update;
  int64_t reloads = 0;     // times the run went back to a checkpoint
  int64_t good_step = -1;  // the checkpoint a row of bad steps goes back to; -1: none yet
  int64_t spikes = 0;      // of the bad steps in a row, those left out for their loss alone
  double best_val = 0;     // 0: none yet
  std::optional<int64_t> best_step = -1;  // with best_val; -1: none yet; nothing: not known
  double last_val = 0;                    // finite
  std::optional<int64_t> last_val_step;   // nothing: none yet, or not known
  std::vector<double> losses;             // the spike guard's window
  std::vector<int64_t> batches;           // the micro-batch of each shape the run goes through
  int64_t logits_bytes = 0;  // of a chunk of logits: how the head's gradient is added up
  LogMark log, samples;
  double train_seconds = 0;
  // fp16: what gradients are multiplied by, and the steps since it last changed.
  double loss_scale = 65536;
  int64_t scale_steps = 0;

  nlohmann::json to_json() const;
  static RunState from_json(const StateFields& run);
};

// The whole of a trainer.json: an error unless it is an object of the version that this program
// writes. The JSON must outlive the result.
StateFields trainer_fields(const nlohmann::json& trainer, const std::string& where);

// What the states of all tasks have in common. `run` is a state of any of them.
nlohmann::json update_to_json(const UpdateState&);  // as bits, for JSON has no NaN
UpdateState update_of(const StateFields& run);
void put_mark(nlohmann::json& run, const std::string& log, const LogMark&);
LogMark mark_of(const StateFields& run, const std::string& log);
// The step of the best checkpoint so far, at most `step`; -1: none yet. Older checkpoints do not
// say: nothing.
std::optional<int64_t> best_step_of(const StateFields& run, int64_t step);

// The step of the last validation, at most `step`. Older checkpoints do not say: nothing.
std::optional<int64_t> last_val_step_of(const StateFields& run, int64_t step);

// Which checkpoints stay beside the newest ones.
struct KeptSteps {
  std::optional<int64_t> best;  // as best_step_of
  int64_t good = -1;            // -1: none
};
KeptSteps kept_steps(const StateFields& run);

}  // namespace hearth
