// Steps that teach nothing: gradients that are not finite, losses far above those before. What a
// run knows of them is in its RunState.
#pragma once

#include <string>

#include "train/run_state.h"

namespace hearth {

// A loss more than z deviations above the last 128; never while there are fewer.
bool is_spike(const RunState&, double z, double loss);
void remember_loss(RunState&, double loss);

// fp16: half the scale when a gradient overflowed under it, twice after long enough without. Such
// a skip is how the scale is found, no sign of a bad run: true where it was taken off the row.
bool follow_scale(RunState&, double loss);

// What a whole row of bad steps was made of, in words.
std::string why_bad(const RunState&);

}  // namespace hearth
