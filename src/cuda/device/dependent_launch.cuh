// Programmatic dependent launch (Hopper and later): a kernel starts before the kernels ahead of it
// have ended, so reads of weights and of uploaded inputs need not wait. The rule that keeps this
// safe: a kernel calls wait_for_previous() before it writes anything or reads what a kernel wrote,
// and at least one of its blocks always calls it. No kernel can then end before its predecessor, so
// waiting for one kernel waits for all before it.
#pragma once

#include <type_traits>

#include "cuda/device/stream.h"

namespace hearth::cuda {

// Waits until all previous kernels have ended and their writes are visible.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the blocks of the next kernel start where there is room.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Whether this GPU has thread block clusters and the kernel was compiled for such GPUs: code
// compiled from PTX of an older architecture can use neither clusters nor griddepcontrol.
bool has_clusters(const Card&, const void* kernel);

struct DependentLaunch {
  dim3 blocks = 1;
  unsigned threads = 1;
  unsigned cluster = 1;  // blocks per cluster; divides blocks.x
  int shared = 0;        // bytes of dynamic shared memory per block
};

// Launches a kernel that calls wait_for_previous() before it touches what others write.
// HEARTH_DEPENDENT_LAUNCH=0 turns the overlap off, for tools that cannot follow it. Overlapping
// kernels share multiprocessors: a kernel with a different shared-memory carveout would wait for
// the first to finish, so all of them prefer the largest carveout.
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
