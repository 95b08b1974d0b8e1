// The sum of the exponentials of a row of logits, by a block of 1024 threads. Training uses this
// order of additions, and so does the sampler where log-probabilities must have equal bits.
#pragma once

#include "cuda/device/device.cuh"

namespace hearth::cuda {

constexpr int row_threads = 1024;

// The transformation of a logit: softcap, then division by the temperature.
struct LogitLevel {
  float scale, inverse;  // scale: (softcap or 1) / temperature; inverse: 1 / softcap or 0

  // Rounded explicitly: must not be contracted into a fused multiply-add where it is inlined.
  __device__ float operator()(float x) const {
    return __fmul_rn(inverse > 0 ? tanhf(x * inverse) : x, scale);
  }
  __device__ float slope(float x) const {  // of the softcap
    if (inverse == 0) return 1;
    const float t = tanhf(x * inverse);
    return 1 - t * t;
  }
};

// The sum of exp(level(x) - top) over V logits; `shared` holds 32 floats.
__device__ __forceinline__ float exp_sum(const float* x, int V, float top, const LogitLevel& level,
                                         float* shared) {
  float z = 0;
  for (int i = int(threadIdx.x); i < V; i += row_threads) z += expf(level(x[i]) - top);
  return block_sum(z, shared);
}

}  // namespace hearth::cuda
