// Kernels that begin before those ahead of them on the stream have ended (Hopper and later): what
// they read of weights, and of what the host sent, does not wait. The rule that keeps this safe: a
// kernel lets the next one start at once, but waits before it writes anything or reads what a
// kernel wrote, in at least one block whatever the others do. Who waits for the one ahead thereby
// waits for all of them.
#pragma once

#include <type_traits>

#include "cuda/stream.h"

namespace hearth::cuda {

// Until everything ahead is done and its writes are seen.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel's blocks may start where there is room.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Whether this card can, and this code waits: code translated from older cards' has no such word.
// HEARTH_EARLY=0 launches one after the other, for tools that cannot follow. Kernels that start
// early share their processors: all of them want the memory there divided in the same way.
bool starts_early(const Card&, const void* kernel);

// Launches a kernel that calls wait_for_previous() before it touches what others write.
template <class... Args>
void launch_early(CudaStream& s, void (*kernel)(Args...), dim3 blocks, unsigned threads,
                  const std::type_identity_t<Args>&... args) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks, config.blockDim = threads, config.stream = s.handle;
  config.attrs = &early;
  config.numAttrs = starts_early(s.card, reinterpret_cast<const void*>(kernel));
  check(cudaLaunchKernelEx(&config, kernel, args...), "launching a kernel");
}

}  // namespace hearth::cuda
