#include "cuda/device/dependent_launch.cuh"

namespace hearth::cuda {

bool has_clusters(const Card& card, const void* kernel) {
  if (card.major < 9) return false;
  cudaFuncAttributes a;
  check(cudaFuncGetAttributes(&a, kernel), "asking for a kernel");
  return a.ptxVersion >= 90;
}

bool CudaStream::prepare_dependent(const void* kernel) {
  const auto [at, is_new] = dependent_kernels_.try_emplace(kernel, false);
  if (is_new && dependent_launch && has_clusters(card, kernel)) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared),
          "dividing a processor's memory");
    at->second = true;
  }
  return at->second;
}

}  // namespace hearth::cuda
