// Flash attention forward for Hopper: chooses the kernel of a call.
#include "cuda/flash_hopper.cuh"

namespace hearth::cuda {
namespace {

template <class T, int D>
void by_features(const AttnCall& a, CudaStream& stream) {
  using namespace flash_fwd;
  if (a.softcap > 0 || a.slopes) {
    if (a.documents)
      launch<T, Shape<D, 2, 128, 2, true, true>>(a, stream);
    else
      launch<T, Shape<D, 2, 128, 2, false, true>>(a, stream);
  } else if (a.documents) {
    launch<T, Shape<D, 2, 128, 2, true>>(a, stream);
  } else {
    launch<T, Shape<D, 2, 128, 2>>(a, stream);
  }
}

template <class T>
void by_head_dim(const AttnCall& a, CudaStream& stream) {
  if (a.D == 64)
    by_features<T, 64>(a, stream);
  else
    by_features<T, 128>(a, stream);
}

}  // namespace

bool flash_hopper_takes(const AttnCall& a) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return (a.dtype == DType::bf16 || a.dtype == DType::f16) && (a.D == 64 || a.D == 128) &&
         a.dropout == 0 && a.scale > 0 && aligned(a.qkv) && aligned(a.y);
}

void flash_hopper(const AttnCall& a, CudaStream& stream) {
  if (a.dtype == DType::f16)
    by_head_dim<__half>(a, stream);
  else
    by_head_dim<__nv_bfloat16>(a, stream);
}

}  // namespace hearth::cuda
