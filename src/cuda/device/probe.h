// Properties of the GPUs, and whether this build has code that they can run.
#pragma once

#include "cuda/device/stream.h"

namespace hearth::cuda {

Card card_properties(int index);

// Whether kernels of this build run on the current GPU.
bool has_code_for_this_card();

}  // namespace hearth::cuda
