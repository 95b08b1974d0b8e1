// The persistent kernel: a whole decode step of up to 8 rows in one launch, for Hopper. One block
// per multiprocessor streams its share of all weights while the blocks exchange activations.
#pragma once

#include <string>

#include "cuda/device/stream.h"
#include "cuda/persistent/phase.h"

namespace hearth::cuda::persistent {

// Bytes of a block's control data, which come before its rows and its ring.
int64_t control_bytes();
// Prepares the kernel for blocks of this much shared memory. Why it cannot run, as a sentence;
// empty: it can.
std::string prepare_step(const CudaStream&, int64_t shared_bytes);
// Launches it. Errors are returned, and not left for the next check.
cudaError_t launch_step(const CudaStream&, const Step&);

}  // namespace hearth::cuda::persistent
