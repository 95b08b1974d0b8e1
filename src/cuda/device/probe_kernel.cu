// An empty kernel. If it cannot be loaded, this build has no code for the GPU.
#include "cuda/device/probe.h"

namespace hearth::cuda {

__global__ void probe_kernel() {}

bool has_code_for_this_card() {
  cudaFuncAttributes a;
  const bool ok = cudaFuncGetAttributes(&a, probe_kernel) == cudaSuccess;
  if (!ok) cudaGetLastError();  // clear it, so that a later launch does not report it
  return ok;
}

}  // namespace hearth::cuda
