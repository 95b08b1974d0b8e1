// Flash attention forward, heads of up to 256.
#include "cuda/attention/mma/flash_mma_fwd.cuh"
#include "cuda/attention/mma/flash_mma_paged.cuh"

namespace hearth::cuda {

template <>
void flash_mma_forward<256>(const FlashForward& a, CudaStream& stream) {
  forward_by_dtype<256, 64, 1, false, 1>(a, stream);
}

template <>
void flash_mma_paged<256>(const FlashPaged& p, CudaStream& stream) {
  paged_by_dtype<256>(p, stream);
}

template <>
void flash_mma_rows<256>(const FlashPaged& p, bool all, CudaStream& stream) {
  rows_by_dtype<256>(p, all, stream);
}

}  // namespace hearth::cuda
