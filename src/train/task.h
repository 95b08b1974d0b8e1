// Task: what a training run computes. Run (train/run.h) owns everything else: the folder, resume,
// the schedule, the step guard, checkpoints, logs and signals. Pretraining, SFT, DPO and GRPO are
// tasks.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "optim/memory_plan.h"
#include "train/config.h"
#include "train/ending.h"
#include "train/step_guard.h"

namespace hearth::inline train {

// The inputs of one step.
struct StepContext {
  int64_t step = 0;       // from 0
  int64_t data_step = 0;  // which data to use; equals `step` until a run rolls back past bad data
  double lr = 0;
  Scalars scalars = {};  // lr, clip, seed, step and loss scale are set
  StepGuard& guard;      // applies the update
};

// The context of step `state.step` in a run of `total` steps.
StepContext step_context(const RunConfig&, int64_t total, const RunState& state, StepGuard&);

struct StepReport {
  std::optional<double> loss = {};    // nothing: the loss that the update read on the device
  std::vector<LossValue> terms = {};  // the loss terms after the first
  int64_t tokens = 0;                 // tokens learned from, without padding
  int64_t examples = 0;               // 0: the task does not count them
  double flops = 0;                   // of the model; 0: unknown
  std::optional<double> lr = {};      // for the log; nothing: the value in the scalars
  nlohmann::ordered_json more = {};   // logged beside the loss
  nlohmann::ordered_json more_perf = {};
  std::string line = {};                   // for the progress line, in place of the loss
  std::vector<std::string> rollouts = {};  // lines for rollouts.jsonl
  // Fills in what the host learns when the device has finished the step, such as the loss. Called
  // once per report, in order, usually while the next step runs.
  std::function<void(StepReport&)> complete = {};
};

struct EvalReport {
  std::optional<double> value = {};  // the best checkpoint is chosen by this value
  bool higher_is_better = false;
  const char* name = "val";           // name of the value, for the progress line
  nlohmann::ordered_json found = {};  // further values for the log
  std::string line = {};              // for the terminal
};
// The usual report: a validation loss, the other loss terms as "val_<name>", and further values.
EvalReport loss_report(double loss, const std::vector<LossValue>& terms = {},
                       const nlohmann::ordered_json& more = {});

// Shows a line of progress during an evaluation.
using ShowProgress = std::function<void(const std::string&)>;

class Task {
 public:
  virtual ~Task() = default;
  virtual std::string_view kind() const = 0;  // the command's name
  virtual int64_t steps() const = 0;          // of the whole run
  virtual UpdateProgram& update() = 0;        // the run saves and restores its state

  // Digest of the training data, known before prepare(); resuming with other data is an error.
  // Empty: the task checks the data itself.
  virtual std::string data_digest() const { return {}; }
  // Bytes by part, for the memory plan printed before the first step.
  virtual std::optional<MemoryNeed> memory_need() const { return {}; }

  // Long work that needs the run folder. False: interrupted by a signal.
  virtual bool prepare() { return true; }
  // begin() is called before the first step of a new run, load() with what save() returned.
  // `moves_on`: the run rolls back after bad steps and keeps its place in the data.
  virtual void begin(RunState&) {}
  virtual void load(RunState&, const StateFields& /*saved*/, bool /*moves_on*/) {}
  virtual nlohmann::json save() const { return nlohmann::json::object(); }

  // Launches one optimizer step; it may return before the step has finished. Nothing: a signal came
  // before the weights were changed. A step that throws must leave the result of save() unchanged.
  virtual std::optional<StepReport> step(StepContext&) = 0;

  virtual bool evaluates() const = 0;        // there is held-out data
  virtual bool evaluates_first() const = 0;  // also evaluate before the first step
  // Nothing: interrupted by a signal; the evaluation will be repeated.
  virtual std::optional<EvalReport> evaluate(const RunState&, const ShowProgress&) = 0;
  virtual bool at_target(const RunState&) const { return false; }

  virtual int64_t sample_every() const { return 0; }
  virtual std::string sample() { return {}; }  // text for the log

  // At the end of a run that made steps: warns, or throws if the run was not successful.
  virtual void conclude(Ending, const std::filesystem::path& /*checkpoint*/) const {}
};

}  // namespace hearth::inline train
