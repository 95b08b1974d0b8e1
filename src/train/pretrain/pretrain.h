// Pretraining: next-token prediction on token files, from random weights or from an existing model
// (continued pretraining).
#pragma once

#include <functional>
#include <string>

#include "train/run.h"

namespace hearth::inline train {

struct PretrainSpec : RunSpec {
  ModelConfig model;  // resolved; the config of train.model if that is set
  TrainConfig train;
  // Generates a sample from the model in training, for the log; empty: no samples.
  std::function<std::string(ParamStore&)> sample = {};
};

RunResult pretrain(const PretrainSpec&, Backend&);

// The path for Tokenizer::load: --tokenizer, or else the tokenizer of --model; empty: none.
std::filesystem::path tokenizer_of(const PretrainSpec&);

}  // namespace hearth::inline train
