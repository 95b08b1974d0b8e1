// RunState: what a training run continues from besides weights and optimizer state. A checkpoint
// stores it as `run` in state/trainer.json; reading it checks the range of every field.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/math.h"
#include "formats/marked_log.h"
#include "formats/run_settings.h"
#include "formats/state_fields.h"

namespace hearth::inline train {

constexpr int max_bad_steps = 3;          // in a row, before a run rolls back
constexpr size_t spike_window = 128;      // losses that the spike guard compares with
constexpr int64_t max_step = UINT32_MAX;  // random draws are keyed by a 32-bit step
constexpr double max_loss_scale = 1 << 24;
constexpr int64_t loss_scale_window = 2000;  // steps without overflow before the scale doubles

// The part of the state that every task has; each task adds its own (Task::save).
struct RunState {
  int64_t step = 0;       // optimizer steps done
  int64_t total = 0;      // planned steps of the whole run
  int64_t data_step = 0;  // steps' worth of data used, including steps that were rolled back
  int64_t tokens = 0;     // tokens trained on
  UpdateState update;
  int64_t reloads = 0;         // times the run rolled back to a checkpoint
  int64_t good_step = -1;      // the checkpoint to roll back to after bad steps; -1: none yet
  int64_t spikes = 0;          // how many of the current row of bad steps were skipped as spikes
  std::vector<double> losses;  // the spike guard's window
  double loss_scale = 65536;   // fp16: factor on the gradients
  int64_t scale_steps = 0;     // good steps since it last changed
  int64_t logits_bytes = 0;    // of a chunk of logits; sets the summation order in the head
  std::optional<double> last_eval, best_eval;  // values of the task's evaluations
  int64_t evaluated = -1;                      // the last step that was evaluated; -1: none yet
  int64_t last_eval_step = -1;                 // the step of last_eval
  bool finite_eval = true;                     // the value at `evaluated` is finite, or none
  int64_t best_step = -1;                      // the checkpoint of best_eval; -1: none yet
  LogMark log, samples;
  double train_seconds = 0;

  nlohmann::json to_json() const;
  static RunState from_json(const StateFields& run);

  // All but `update` and the marks of the logs.
  template <class S, class V>
  static void visit(S& s, V&& v) {
    v("step", s.step, 0, max_step);
    v("total", s.total, 0, max_step);
    v("data_step", s.data_step, s.step, max_step);
    v("tokens", s.tokens);
    v("reloads", s.reloads);
    v("good_step", s.good_step, -1, s.step);
    v("spikes", s.spikes, 0, max_bad_steps);
    v("losses", s.losses, spike_window);
    v("loss_scale", s.loss_scale, 0x1p-24, max_loss_scale);
    v("scale_steps", s.scale_steps, 0, loss_scale_window);
    v("logits_bytes", s.logits_bytes);
    v("last_eval", s.last_eval);
    v("best_eval", s.best_eval);
    v("evaluated", s.evaluated, -1, s.step);
    v("last_eval_step", s.last_eval_step, -1, s.evaluated);
    v("finite_eval", s.finite_eval);
    v("best_step", s.best_step, -1, s.step);
    v("train_seconds", s.train_seconds, 0);
  }
};

constexpr int trainer_version = 2;

// The fields of a whole trainer.json. Throws unless it is an object of the version that this
// program writes. The JSON must outlive the result.
StateFields trainer_fields(const nlohmann::json& trainer, const std::string& where);

// What identifies the run that a checkpoint belongs to.
struct RunIdentity {
  std::string_view kind;  // the key under which the settings are saved
  const RunSettings& settings;
  const nlohmann::json base;  // TrainedModel::base
  std::string data;           // digest of the training data
};
// Throws if the checkpoint belongs to another run. Returns a name of the file for later errors.
std::string expect_same_run(const std::filesystem::path& checkpoint, const RunIdentity&);

nlohmann::json update_to_json(const UpdateState&);  // as bit patterns, since JSON has no NaN
UpdateState update_of(const StateFields& run);

// Checkpoints to keep in addition to the newest ones; -1: none.
struct KeptSteps {
  int64_t best = -1, good = -1;
};
KeptSteps kept_steps(const StateFields& run);

}  // namespace hearth::inline train
