// Direct preference optimisation: the policy learns to prefer what was chosen over what was
// rejected, measured against a reference that stays as it was.
#pragma once

#include "train/dpo/dpo_loss.h"
#include "train/examples/example_task.h"

namespace hearth::inline train {

RunResult dpo(const DpoConfig&, const RunSpec&, Backend&);

}  // namespace hearth::inline train
