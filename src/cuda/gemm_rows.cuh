// What products of few and of some rows do alike: eight elements normed on their way in, and the
// activation on the way out.
#pragma once

#include "cuda/act.cuh"
#include "cuda/mma.cuh"

namespace hearth::cuda {

template <class T>
__device__ __forceinline__ float act_of_product(Act act, float x) {
  if (act == Act::gelu_tanh) return act_value_for<Act::gelu_tanh, T>(x);
  if (act == Act::gelu_erf) return act_value_for<Act::gelu_erf, T>(x);
  return act_value_for<Act::relu2, T>(x);  // a GLU is no act of a product
}

// Eight elements as floats.
template <class T>
__device__ __forceinline__ void eight_floats(float (&f)[8], const uint4& v) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = unpack(words[i], T());
    f[2 * i] = two.x, f[2 * i + 1] = two.y;
  }
}

// The normed eight, rounded as the norm's own kernel rounds them.
template <class T>
__device__ __forceinline__ uint4 eight_normed(const uint4& x, const uint4& gain, const uint4& shift,
                                              bool gains, bool shifts, float mean, float inverse) {
  float v[8], g[8], b[8];
  eight_floats<T>(v, x), eight_floats<T>(g, gain), eight_floats<T>(b, shift);
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    v[k] = (v[k] - mean) * inverse;
    if (gains) v[k] *= g[k];
    if (shifts) v[k] += b[k];
  }
  return {pack(v[0], v[1], T()), pack(v[2], v[3], T()), pack(v[4], v[5], T()),
          pack(v[6], v[7], T())};
}

}  // namespace hearth::cuda
