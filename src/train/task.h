// Task: what a training run computes. Run (train/run.h) owns everything else: the folder, resume,
// the schedule, the step guard, checkpoints, logs, signals. Pretraining, SFT, DPO and GRPO are
// tasks.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "train/config.h"
#include "train/pretrain/programs.h"
#include "train/step_guard.h"

namespace hearth::inline train {

// What a task is given for one step.
struct StepContext {
  int64_t step = 0;       // from 0
  int64_t data_step = 0;  // which data to use: the same, until a run goes back past bad data
  double lr = 0;
  Scalars scalars = {};  // lr, clip, seed, step and loss scale are set
  StepGuard& guard;      // applies the update
};

// What step `state.step` of a run of `total` steps is given.
StepContext step_context(const RunConfig&, int64_t total, const RunState& state, StepGuard&);

struct StepReport {
  std::optional<double> loss = {};    // nothing: the one that the update read on the device
  std::vector<LossValue> terms = {};  // the other terms of what is minimised
  int64_t tokens = 0;                 // learned from; padding not counted
  int64_t examples = 0;               // 0: the task does not count them
  double flops = 0;                   // of the model; 0: not known
  std::optional<double> lr = {};      // as logged; nothing: the scalar
  nlohmann::ordered_json more = {};   // logged beside the loss
  nlohmann::ordered_json more_perf = {};
  std::string line = {};  // for the progress line, in the place of the loss
  // Fills in what the host learns when the device has made the step: the loss, for one. Called once
  // for every report, in their order, as a rule while the next step runs.
  std::function<void(StepReport&)> complete = {};
};

struct EvalReport {
  std::optional<double> value = {};  // what the best checkpoint is chosen by
  bool higher_is_better = false;
  const char* name = "val";           // of the value, for the progress line
  nlohmann::ordered_json found = {};  // logged
  std::string line = {};              // for the terminal
};
// The usual one: a validation loss, the other terms of the loss ("val_<name>"), and what was found
// beside them.
EvalReport loss_report(double loss, const std::vector<LossValue>& terms = {},
                       const nlohmann::ordered_json& more = {});

class Task {
 public:
  virtual ~Task() = default;
  virtual std::string_view kind() const = 0;  // the command's name
  virtual int64_t steps() const = 0;          // of the whole run
  virtual UpdateProgram& update() = 0;        // the run saves and restores its state

  // Settings that may change when a run is resumed, beside free_run_settings.
  virtual std::span<const std::string_view> free_settings() const { return {}; }
  // Identifies what the run learns from: a run that is resumed with other data is refused. Empty:
  // the task sees to it.
  virtual std::string data_digest() const { return {}; }
  // Bytes by part, for the plan that is shown before the first step.
  virtual std::optional<MemoryNeed> memory_need() const { return {}; }

  // Work that takes long and needs the run folder. False: a signal came.
  virtual bool prepare() { return true; }
  // Before the first step of a new run, or with what save() gave. `moves_on`: the run goes back
  // after bad steps, and keeps its place in the data.
  virtual void begin(RunState&) {}
  virtual void load(RunState&, const StateFields& /*saved*/, bool /*moves_on*/) {}
  virtual nlohmann::json save() const { return nlohmann::json::object(); }

  // Launches one optimizer step; it need not wait for its end. Nothing: a signal came before the
  // weights were touched. A step that throws leaves what save() gives as it was.
  virtual std::optional<StepReport> step(StepContext&) = 0;

  virtual bool evaluates() const = 0;        // there is something to evaluate on
  virtual bool evaluates_first() const = 0;  // also before the first step
  // Nothing: a signal came; the evaluation is due again. `progress` takes lines about how far it
  // is.
  virtual std::optional<EvalReport> evaluate(
      const RunState&, const std::function<void(const std::string&)>& progress) = 0;
  virtual bool at_target(const RunState&) const { return false; }

  virtual int64_t sample_every() const { return 0; }
  virtual std::string sample() { return {}; }  // text for the log

  // At the end of a run that made steps: warnings, or an error where it was no success.
  virtual void conclude(const std::string& /*reason*/,
                        const std::filesystem::path& /*checkpoint*/) const {}
};

}  // namespace hearth::inline train
