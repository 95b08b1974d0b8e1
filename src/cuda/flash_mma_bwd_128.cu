// Flash attention backward, heads of up to 128. Cards with 99 KB of shared memory take fewer
// queries at a time.
#include "cuda/flash_mma_bwd.cuh"

namespace hearth::cuda {

template <>
void flash_mma_backward<128>(const FlashBackward& a, CudaStream& stream) {
  using Large = BackwardSizes<64, 32, 128, 2, 2, 2, 2, 1>;
  using Small = BackwardSizes<32, 32, 128, 1, 1, 1, 1, 1>;
  if (stream.card.shared_bytes >= backward_shared<Large, 128>)
    backward_by_dtype<Large, 128>(a, stream);
  else
    backward_by_dtype<Small, 128>(a, stream);
}

}  // namespace hearth::cuda
