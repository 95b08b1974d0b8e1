// The maximum of a row of logits and the sum of its exponentials, by a block of 1024 threads. Who
// draws a token and who trains on it add up in the same order: equal logits give equal bits.
#pragma once

#include "cuda/device.cuh"

namespace hearth::cuda {

constexpr int row_threads = 1024;

// The sum of exp(level(x) - top) over V logits; `shared` holds 32 floats.
template <class Level>
__device__ __forceinline__ float exp_sum(const float* x, int V, float top, const Level& level,
                                         float* shared) {
  float z = 0;
  for (int i = int(threadIdx.x); i < V; i += row_threads) z += expf(level(x[i]) - top);
  return block_sum(z, shared);
}

}  // namespace hearth::cuda
