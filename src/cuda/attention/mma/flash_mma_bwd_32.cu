// Flash attention backward, heads of up to 32.
#include "cuda/attention/mma/flash_mma_bwd.cuh"

namespace hearth::cuda {

template <>
void flash_mma_backward<32>(const FlashBackward& a, CudaStream& stream) {
  backward_by_dtype<BackwardSizes<64, 32, 128, 2, 1, 2, 1, 2>, 32>(a, stream);
}

}  // namespace hearth::cuda
