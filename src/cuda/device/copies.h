// Many copies on the card as one launch: blocks of a cache that samples of a prompt shared until
// one of them wrote.
#pragma once

#include <span>

#include "core/backend.h"
#include "cuda/device/stream.h"

namespace hearth::cuda {

// Whether they are worth a kernel, and all in whole 16 bytes.
bool copies_fit(std::span<const Copy>);
// `list` lies on the card.
void launch_copies(CudaStream&, const Copy* list, int64_t count);

}  // namespace hearth::cuda
