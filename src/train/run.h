// Run: one training run of any task, from its folder to its last checkpoint. A run that was
// stopped, by a signal or a crash, continues from its newest valid checkpoint as if it had never
// stopped.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "formats/run_settings.h"
#include "sys/phases.h"
#include "train/config.h"
#include "train/task.h"
#include "train/trained_model.h"

namespace hearth::inline train {

// How a command starts a run. These options are not part of the settings that the run saves.
struct RunSpec {
  std::filesystem::path run;
  bool resume = false;                          // continue the run in the folder, if there is one
  bool quiet = false;                           // nothing on stderr
  std::optional<int64_t> stop_after_step = {};  // save and exit after this step
  double peak_flops = 0;                        // of this machine, for MFU; 0: unknown
  const std::atomic<int>* stop = nullptr;       // set by a signal handler
  std::vector<std::string> notes = {};          // passed to `warn` when the run is new
  std::function<void(const std::string&)> warn = {};  // called for a damaged checkpoint, a fallback
  // How the command spent its time before the run; the run continues the count.
  std::shared_ptr<Phases> phases = std::make_shared<Phases>();

  bool goes_on() const { return resume && std::filesystem::exists(run / "config.toml"); }
  bool stopped() const { return stop && *stop; }
  void tell(const std::string& line) const {
    if (warn && !line.empty()) warn(line);
  }
};

struct RunResult {
  int64_t steps = 0, tokens = 0;
  std::optional<double> train_loss;    // of the last step; nothing: no step was made
  std::optional<double> val_loss;      // of the last evaluation
  std::optional<int64_t> val_step;     // the step of val_loss
  std::optional<double> tokens_per_s;  // nothing: this process made no step
  double train_seconds = 0;
  int64_t skipped = 0, reloads = 0;
  bool diverged = false;  // the gradient, loss or evaluation of the last step is not finite
  Ending reason = Ending::steps;
  std::filesystem::path checkpoint;
  nlohmann::ordered_json seconds;  // wall time by phase
};

// Throws if the folder has a run and `resume` is off, or if that run was started with other
// settings. Tasks call this before they load anything.
void expect_settings(const RunSpec&, const RunSettings&);

RunResult run_task(const RunSpec&, const RunConfig&, const RunSettings&, TrainedModel&, Task&);

}  // namespace hearth::inline train
