// Flash attention forward, heads of up to 96.
#include "cuda/flash_mma_fwd.cuh"

namespace hearth::cuda {

template <>
void flash_mma_forward<96>(const FlashForward& a, CudaStream& stream) {
  forward_by_dtype<96, 128, 1, false, 2>(a, stream);
}

}  // namespace hearth::cuda
