// Losses of further tokens without parameters: the model's own head also predicts tokens after the
// next one.
#pragma once

#include "model/config.h"
#include "ops/ops.h"

namespace hearth::inline model {

// The loss terms further_1 and further_2 of the states x (B, T, C), which predict the targets 1 and
// 2 further, with this weight and its square; 0: none. Only programs that train have them
// (head.grad). Without `positions` the rows of x are not whole sequences, which is an error.
void record_further_losses(Tape&, const ModelConfig&, Var x, Var positions, Var targets,
                           float weight, HeadSpec);

}  // namespace hearth::inline model
