// Flash attention forward, heads of up to 192.
#include "cuda/flash_mma_fwd.cuh"

namespace hearth::cuda {

template <>
void flash_mma_forward<192>(const FlashForward& a, CudaStream& stream) {
  forward_by_dtype<192, 64, 1, false, 2>(a, stream);
}

}  // namespace hearth::cuda
