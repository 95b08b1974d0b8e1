// Flash attention backward, heads of up to 192.
#include "cuda/attention/mma/flash_mma_bwd.cuh"

namespace hearth::cuda {

template <>
void flash_mma_backward<192>(const FlashBackward& a, CudaStream& stream) {
  backward_by_dtype<BackwardSizes<32, 32, 64, 1, 1, 1, 1, 2>, 192>(a, stream);
}

}  // namespace hearth::cuda
