// The batches a pretraining run validates on.
#pragma once

#include <functional>

#include "data/loader.h"
#include "train/config.h"

namespace hearth {

// Calls use(batch) until it returns false or the tokens asked for are through, the files once.
// Files that are too short for a full batch come in batches with masked targets.
void each_validation_batch(const LoaderSpec&, const TrainConfig&,
                           const std::function<bool(const Batch&)>& use);

}  // namespace hearth
