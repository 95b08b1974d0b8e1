// Flash attention backward, heads of up to 128. With plain masks, GPUs with 227 KB of shared memory
// use two groups of warps; GPUs with 99 KB use smaller tiles of queries.
#include "cuda/attention/mma/flash_mma_bwd_groups.cuh"

namespace hearth::cuda {

template <>
void flash_mma_backward<128>(const FlashBackward& a, CudaStream& stream) {
  using Large = BackwardSizes<64, 32, 128, 2, 2, 2, 2, 1>;
  using Small = BackwardSizes<32, 32, 128, 1, 1, 1, 1, 1>;
  const bool groups = !a.general && stream.card.shared_bytes >= GroupedTile<__half, 128>::needs;
  if (groups && a.dtype == DType::bf16)
    launch_grouped_backward<GroupedTile<__nv_bfloat16, 128>>(a, stream);
  else if (groups && a.dtype == DType::f16)
    launch_grouped_backward<GroupedTile<__half, 128>>(a, stream);
  else if (stream.card.shared_bytes >= backward_shared<Large, 128>)
    backward_by_dtype<Large, 128>(a, stream);
  else
    backward_by_dtype<Small, 128>(a, stream);
}

}  // namespace hearth::cuda
