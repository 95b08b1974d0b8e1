// Flash attention backward, heads of up to 256. GPUs with 99 KB of shared memory use smaller tiles
// of queries.
#include "cuda/attention/mma/flash_mma_bwd.cuh"

namespace hearth::cuda {

template <>
void flash_mma_backward<256>(const FlashBackward& a, CudaStream& stream) {
  using Large = BackwardSizes<32, 32, 64, 1, 1, 1, 1, 2>;
  using Small = BackwardSizes<16, 16, 64, 1, 1, 1, 1, 2>;
  if (stream.card.shared_bytes >= backward_shared<Large, 256>)
    backward_by_dtype<Large, 256>(a, stream);
  else
    backward_by_dtype<Small, 256>(a, stream);
}

}  // namespace hearth::cuda
