// What the kernels of the weight update share: the weights of a range, and the functions that a
// rule (core/update_rules.h) needs.
#pragma once

#include "cuda/device/device.cuh"

namespace hearth::cuda {

struct FloatMath {
  __host__ __device__ __forceinline__ static float sqrt(float x) { return sqrtf(x); }
};

// G: the type of the gradient, which for descent is that of Muon's products.
template <class T, class G = float>
struct Weights {
  T* w;
  float* master;  // may be null: w is the master
  const G* grad;
};

template <int N, class M>
__device__ __forceinline__ void load_floats(float (&x)[N], const M* p) {
  const Pack<M, N> pack = load<N>(p);
#pragma unroll
  for (int k = 0; k < N; ++k) x[k] = get(pack, k);
}

// The update of a range whose state is 8-bit codes (update_coded.cu).
void update_coded(CudaStream&, const UpdateArgs&);

}  // namespace hearth::cuda
