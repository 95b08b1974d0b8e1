// Kernels that begin before those ahead of them on the stream have ended (Hopper and later): what
// they read of weights, and of what the host sent, does not wait. The rule that keeps this safe: a
// kernel lets the next one start at once, but waits before it writes anything or reads what a
// kernel wrote, in at least one block whatever the others do. Who waits for the one ahead thereby
// waits for all of them.
#pragma once

#include <type_traits>

#include "cuda/device/stream.h"

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

// Whether this card has clusters of blocks, and this code was made for such cards: code translated
// from older cards' has no word for them, nor for waiting.
bool has_clusters(const Card&, const void* kernel);

struct DependentLaunch {
  dim3 blocks = 1;
  unsigned threads = 1;
  unsigned cluster = 1;  // blocks that run at once and see each other's memory; divides blocks.x
  int shared = 0;        // bytes of dynamic memory to a block
};

// Launches a kernel that calls wait_for_previous() before it touches what others write.
// HEARTH_DEPENDENT_LAUNCH=0 launches one after the other, for tools that cannot follow. Kernels
// that start early share their processors: where two divide the memory there differently, the later
// one waits until the first is gone, so all of them ask for as much shared memory as there is.
template <class... Args>
void launch_dependent(CudaStream& s, void (*kernel)(Args...), const DependentLaunch& spec,
                      const std::type_identity_t<Args>&... args) {
  if (spec.shared > 0)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               int(s.card.shared_bytes)),
          "asking for shared memory");
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (spec.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {spec.cluster, 1, 1};
  }
  if (s.prepare_dependent(reinterpret_cast<const void*>(kernel))) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = spec.blocks, config.blockDim = spec.threads, config.stream = s.handle;
  config.dynamicSmemBytes = size_t(spec.shared);
  config.attrs = attributes, config.numAttrs = count;
  check(cudaLaunchKernelEx(&config, kernel, args...), "launching a kernel");
}

template <class... Args>
void launch_dependent(CudaStream& s, void (*kernel)(Args...), dim3 blocks, unsigned threads,
                      const std::type_identity_t<Args>&... args) {
  launch_dependent(s, kernel, DependentLaunch{.blocks = blocks, .threads = threads}, args...);
}

}  // namespace hearth::cuda
