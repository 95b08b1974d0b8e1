// Flash attention forward, heads of up to 128.
#include "cuda/attention/mma/flash_mma_fwd.cuh"
#include "cuda/attention/mma/flash_mma_paged.cuh"

namespace hearth::cuda {

template <>
void flash_mma_forward<128>(const FlashForward& a, CudaStream& stream) {
  forward_by_dtype<128, 128, 1, false, 2>(a, stream);
}

template <>
void flash_mma_paged<128>(const FlashPaged& p, CudaStream& stream) {
  paged_by_dtype<128>(p, stream);
}

template <>
void flash_mma_rows<128>(const FlashPaged& p, bool all, CudaStream& stream) {
  rows_by_dtype<128>(p, all, stream);
}

}  // namespace hearth::cuda
