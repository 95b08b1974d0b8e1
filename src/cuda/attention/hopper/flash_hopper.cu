// Flash attention forward for Hopper: which calls it supports.
#include "cuda/attention/hopper/flash_hopper_launch.cuh"

namespace hearth::cuda {
bool flash_hopper_takes(const AttnCall& a) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return (a.dtype == DType::bf16 || a.dtype == DType::f16) && (a.D == 64 || a.D == 128) &&
         a.V == a.D && a.dropout == 0 && a.scale > 0 && aligned(a.qkv) && aligned(a.y);
}

void flash_hopper(const AttnCall& a, CudaStream& stream) {
  if (a.dtype == DType::f16)
    flash_hopper_f16(a, stream);
  else
    flash_hopper_bf16(a, stream);
}

}  // namespace hearth::cuda
