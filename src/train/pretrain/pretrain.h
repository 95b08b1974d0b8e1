// Pretraining: the task of predicting the next token of token files, from fresh weights or from a
// model (continued pretraining).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "train/run.h"

namespace hearth::inline train {

struct PretrainSpec : RunSpec {
  ModelConfig model;  // resolved; of train.model where that names one
  TrainConfig train;
  // A text by the model in training, for the log; absent: no samples.
  std::function<std::string(ParamStore&)> sample = {};
};

RunResult pretrain(const PretrainSpec&, Backend&);

// What Tokenizer::load takes: --tokenizer, or the tokenizer of --model; empty: none.
std::filesystem::path tokenizer_of(const PretrainSpec&);

// How a step's tokens are cut into micro-batches, from `first_step` on.
struct BatchShape {
  int64_t first_step = 0;
  int64_t B = 1, T = 1, micro_batches = 1;
  bool operator==(const BatchShape&) const = default;
};

// What a backend offers a run.
struct Room {
  int64_t free_bytes = 0, logits_bytes = 0;
  bool host_offload = false;  // there is host memory for optimizer state and masters

  // What `held` has of the memory already counts as free: a plan counts it too.
  static Room of(const Backend&, const ParamStore* held = nullptr);
};

// Every shape the schedules of a run go through, checked before it starts: each fits in the room. A
// batch of 0 is the largest that fits, or what `chosen` says: the choice the run made when it
// began, for another would not be the same run.
std::vector<BatchShape> batch_shapes(const ModelConfig&, const TrainConfig&, const Room&,
                                     std::span<const int64_t> chosen = {});

// Tokens of the first optimizer step, as the settings alone say.
int64_t first_step_tokens(const ModelConfig&, const TrainConfig&);

ProgramSpec program_spec(const ModelConfig&, const TrainConfig&, const BatchShape&,
                         int64_t logits_bytes);

}  // namespace hearth::inline train
