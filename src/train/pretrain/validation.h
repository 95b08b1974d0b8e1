// The batches a pretraining run validates on.
#pragma once

#include <functional>

#include "data/loader.h"
#include "train/config.h"

namespace hearth::inline train {

// How many tokens a run validates on that was not told: forward passes over 64 steps' worth of them
// cost as much as about 20 training steps, on any machine. A power of two, at most 2^20. The number
// follows from the settings alone and not from a measured speed, so that one command always gives
// one log.
int64_t default_eval_tokens(int64_t tokens_per_step);

// Calls use(batch) until it returns false or the tokens asked for are through, the files once.
// Files that are too short for a full batch come in batches with masked targets.
void each_validation_batch(const LoaderSpec&, const TrainConfig&,
                           const std::function<bool(const Batch&)>& use);

}  // namespace hearth::inline train
