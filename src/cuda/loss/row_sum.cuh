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

// Calls f(i, x[i]) for the elements [begin, end) of a row that belong to this thread, in ascending
// order, with several loads under way at once. f may overwrite x[i].
template <int under_way = 8, class F>
__device__ __forceinline__ void each_of_row(const float* x, int begin, int end, F&& f) {
  int i = begin + int(threadIdx.x);
  float v[under_way];
  for (; i + (under_way - 1) * row_threads < end; i += under_way * row_threads) {
#pragma unroll
    for (int u = 0; u < under_way; ++u) v[u] = x[i + u * row_threads];
#pragma unroll
    for (int u = 0; u < under_way; ++u) f(i + u * row_threads, v[u]);
  }
#pragma unroll
  for (int u = 0; u < under_way; ++u)
    if (i + u * row_threads < end) v[u] = x[i + u * row_threads];
#pragma unroll
  for (int u = 0; u < under_way; ++u)
    if (i + u * row_threads < end) f(i + u * row_threads, v[u]);
}

// The sum of exp(level(x) - top) over V logits; `shared` holds 32 floats.
__device__ __forceinline__ float exp_sum(const float* x, int V, float top, const LogitLevel& level,
                                         float* shared) {
  float z = 0;
  each_of_row(x, 0, V, [&](int, float v) { z += expf(level(v) - top); });
  return block_sum(z, shared);
}

}  // namespace hearth::cuda
