// Flash attention backward, heads of up to 96.
#include "cuda/attention/mma/flash_mma_bwd.cuh"

namespace hearth::cuda {

template <>
void flash_mma_backward<96>(const FlashBackward& a, CudaStream& stream) {
  backward_by_dtype<BackwardSizes<64, 32, 128, 1, 1, 4, 1, 1>, 96>(a, stream);
}

}  // namespace hearth::cuda
