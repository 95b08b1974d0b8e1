// Supervised fine-tuning: the model learns what its examples mark, by the sum of negative
// log-likelihoods over the number of learned tokens of the whole step.
#pragma once

#include "train/examples/example_task.h"

namespace hearth::inline train {

RunResult sft(const SftConfig&, const RunSpec&, Backend&);

}  // namespace hearth::inline train
