// The losses of direct preference optimisation for one pair, in double precision: from summed
// log-probabilities to the loss, its gradient, and the values that are reported.
#pragma once

#include <cstdint>

#include "train/examples/example_config.h"

namespace hearth::inline train {

// Sums of log-probabilities over the tokens of a completion, under the policy and the reference
// model.
struct CompletionSums {
  double policy = 0, reference = 0;
  int64_t tokens = 1;
};

struct DpoSpec {
  DpoLoss loss = DpoLoss::sigmoid;
  double beta = 0.1, label_smoothing = 0;
};

struct DpoPair {
  double loss = 0;
  // d loss / d log-probability, the same for every token of the completion.
  double d_chosen = 0, d_rejected = 0;
  double reward_chosen = 0, reward_rejected = 0;  // beta * (policy - reference)
};

DpoPair dpo_pair(const CompletionSums& chosen, const CompletionSums& rejected, const DpoSpec&);

}  // namespace hearth::inline train
