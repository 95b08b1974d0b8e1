// A kernel that does nothing: whether it can be loaded says whether this build has code for a card.
#include "cuda/device/probe.h"

namespace hearth::cuda {

__global__ void probe_kernel() {}

bool has_code_for_this_card() {
  cudaFuncAttributes a;
  const bool ok = cudaFuncGetAttributes(&a, probe_kernel) == cudaSuccess;
  if (!ok) cudaGetLastError();  // not an error of a later launch
  return ok;
}

}  // namespace hearth::cuda
