// The training loop: from a config and a run folder to a trained model. A run that was stopped, by
// a signal or a crash, goes on from its newest valid checkpoint as if it had never stopped.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "core/backend.h"
#include "model/config.h"
#include "train/checkpoint.h"
#include "train/config.h"
#include "train/programs.h"

namespace hearth {

struct RunSpec {
  ModelConfig model;
  TrainConfig train;
  std::filesystem::path run;
  bool resume = false;                     // go on with the run in the folder, if there is one
  bool quiet = false;                      // nothing on stderr
  int64_t stop_after_step = 0;             // save and end after that step; 0: do not
  double peak_flops = 0;                   // of this machine, for MFU; 0: unknown
  const std::atomic<int>* stop = nullptr;  // set by a signal handler
  // Text the model makes at this moment, for the log; absent: no samples.
  std::function<std::string(ParamStore&)> sample;
  std::vector<std::string> notes;                // for `warn`, where the run begins anew
  std::function<void(const std::string&)> warn;  // about a damaged checkpoint, a fallback
};

struct RunResult {
  int64_t steps = 0, tokens = 0;
  std::optional<double> train_loss;    // of the last step; nothing: no step was made
  std::optional<double> val_loss;      // of the last validation
  std::optional<int64_t> val_step;     // the step of it; nothing: none, or not known
  std::optional<double> tokens_per_s;  // nothing: this process made no step
  double train_seconds = 0;
  int64_t skipped = 0, reloads = 0;
  std::string reason;  // "steps", "target", "stopped"
  std::filesystem::path checkpoint;
};

RunResult pretrain(const RunSpec&, Backend&);

// How a step's tokens are cut, from `first_step` on.
struct BatchShape {
  int64_t first_step = 0;
  int64_t B = 1, T = 1, micro_batches = 1;
  bool operator==(const BatchShape&) const = default;
};

// What a backend offers a run.
struct Room {
  int64_t free_bytes = 0, logits_bytes = 0;
  bool far_memory = false;  // there is more for moments and masters
};

// Every shape the schedules of a run go through, checked before it starts: each fits in
// the room. A batch left to us is the largest that fits, or what `chosen` says: the choice the
// run made when it began, for another would not be the same run.
std::vector<BatchShape> batch_shapes(const ModelConfig&, const TrainConfig&, const Room&,
                                     std::span<const int64_t> chosen = {});

// Tokens of the first optimizer step, as the settings alone say.
int64_t first_step_tokens(const ModelConfig&, const TrainConfig&);

ProgramSpec program_spec(const ModelConfig&, const TrainConfig&, const BatchShape&,
                         int64_t logits_bytes);

}  // namespace hearth
