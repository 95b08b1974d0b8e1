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
// HEARTH_EARLY=0 launches one after the other, for tools that cannot follow.
bool starts_early(const Card&, const void* kernel);
// Whether this card has clusters of blocks, and this code was made for such cards.
bool has_clusters(const Card&, const void* kernel);

// Launches a kernel that calls wait_for_previous() before it touches what others write.
template <class... Args>
void launch_early(CudaStream& s, void (*kernel)(Args...), dim3 blocks, unsigned threads,
                  const std::type_identity_t<Args>&... args) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks, config.blockDim = threads, config.stream = s.handle;
  static const bool early_start = starts_early(s.card, reinterpret_cast<const void*>(kernel));
  config.attrs = &early, config.numAttrs = early_start;
  check(cudaLaunchKernelEx(&config, kernel, args...), "launching a kernel");
}

struct ClusterLaunch {
  unsigned blocks = 1, threads = 1;
  unsigned cluster = 1;  // blocks that run at once and see each other's memory; divides blocks
  int shared = 0;        // bytes of memory to a block
};

// The same in clusters of blocks. All of a multiprocessor's memory is asked for as shared: where
// two kernels divide it differently, the later one waits for the first to be gone.
template <class... Args>
void launch_early_clusters(CudaStream& s, void (*kernel)(Args...), const ClusterLaunch& spec,
                           const std::type_identity_t<Args>&... args) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             int(s.card.shared_bytes)),
        "asking for shared memory");
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "asking for shared memory");
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (spec.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {spec.cluster, 1, 1};
  }
  static const bool early_start = starts_early(s.card, reinterpret_cast<const void*>(kernel));
  if (early_start) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = spec.blocks, config.blockDim = spec.threads, config.stream = s.handle;
  config.dynamicSmemBytes = size_t(spec.shared);
  config.attrs = attributes, config.numAttrs = count;
  check(cudaLaunchKernelEx(&config, kernel, args...), "launching a kernel");
}

}  // namespace hearth::cuda
