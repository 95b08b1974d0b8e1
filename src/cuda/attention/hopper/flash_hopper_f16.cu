// Flash attention forward for Hopper in f16.
#include "cuda/attention/hopper/flash_hopper_launch.cuh"

namespace hearth::cuda {

void flash_hopper_f16(const AttnCall& a, CudaStream& stream) {
  flash_fwd::by_head_dim<__half>(a, stream);
}

}  // namespace hearth::cuda
