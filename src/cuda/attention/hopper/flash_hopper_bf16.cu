// Flash attention forward for Hopper in bf16.
#include "cuda/attention/hopper/flash_hopper_launch.cuh"

namespace hearth::cuda {

void flash_hopper_bf16(const AttnCall& a, CudaStream& stream) {
  flash_fwd::by_head_dim<__nv_bfloat16>(a, stream);
}

}  // namespace hearth::cuda
