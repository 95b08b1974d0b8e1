// Converts eight 16-bit values, loaded as one 16-byte word, to floats.
#pragma once

#include "cuda/device/mma.cuh"

namespace hearth::cuda {

template <class T>
__device__ __forceinline__ void eight_floats(float (&f)[8], const uint4& v) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = unpack(words[i], T());
    f[2 * i] = two.x, f[2 * i + 1] = two.y;
  }
}

}  // namespace hearth::cuda
