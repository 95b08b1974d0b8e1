// Direct preference optimisation: the policy learns to prefer chosen over rejected completions,
// relative to a fixed reference model.
#pragma once

#include "train/dpo/dpo_loss.h"
#include "train/examples/example_task.h"

namespace hearth::inline train {

RunResult dpo(const DpoConfig&, const RunSpec&, Backend&);

}  // namespace hearth::inline train
