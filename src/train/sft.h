// Supervised fine-tuning: the model learns the marked tokens of its examples. The loss is the sum
// of their negative log-likelihoods divided by the number of learned tokens of the whole step.
#pragma once

#include "train/examples/example_task.h"

namespace hearth::inline train {

RunResult sft(const SftConfig&, const RunSpec&, Backend&);

}  // namespace hearth::inline train
