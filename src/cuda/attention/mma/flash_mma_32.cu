// Flash attention forward, heads of up to 32.
#include "cuda/attention/mma/flash_mma_fwd.cuh"
#include "cuda/attention/mma/flash_mma_paged.cuh"

namespace hearth::cuda {

template <>
void flash_mma_forward<32>(const FlashForward& a, CudaStream& stream) {
  forward_by_dtype<32, 128, 2, true, 2>(a, stream);
}

template <>
void flash_mma_paged<32>(const FlashPaged& p, CudaStream& stream) {
  paged_by_dtype<32>(p, stream);
}

template <>
void flash_mma_rows<32>(const FlashPaged& p, bool all, CudaStream& stream) {
  rows_by_dtype<32>(p, all, stream);
}

}  // namespace hearth::cuda
