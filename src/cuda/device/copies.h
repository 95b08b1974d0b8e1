// Many device-to-device copies in one launch. Used for cache blocks that samples of one prompt
// shared until one of them wrote.
#pragma once

#include <span>

#include "core/backend.h"
#include "cuda/device/stream.h"

namespace hearth::cuda {

// Whether there are enough copies for a kernel, and all are aligned to 16 bytes.
bool copies_fit(std::span<const Copy>);
// `list` is in device memory.
void launch_copies(CudaStream&, const Copy* list, int64_t count);

}  // namespace hearth::cuda
