// The first pass over rows of logits: each block reads a stretch of a row and finds its likeliest
// token and the sum of its exponentials.
#pragma once

#include "cuda/device/dependent_launch.cuh"
#include "cuda/device/device.cuh"

namespace hearth::cuda {

using Mass = unsigned long long;

// An integer with the order of the float.
__device__ __forceinline__ uint32_t key_of(float x) {
  const uint32_t b = __float_as_uint(x);
  return b & 0x80000000u ? ~b : b | 0x80000000u;
}

__device__ __forceinline__ float number_of(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// What a thread has seen of a row: the likeliest token (the first among equals, since ids come in
// ascending order), and the sum of exp(x - top).
struct RowSeen {
  uint32_t key = 0;
  int id = -1;
  float top = -INFINITY, sum = 0;

  __device__ __forceinline__ void see(int at, float x) {
    const uint32_t k = key_of(x);
    if (k > key) key = k, id = at;
  }
  // To be called after see() and before add() for the same logits; false if all are -inf.
  __device__ __forceinline__ bool raise() {
    const float now = number_of(key);
    if (key == 0 || now == -INFINITY) return false;
    if (sum > 0) sum *= expf(top - now);
    top = now;
    return true;
  }
  __device__ __forceinline__ void add(float x) { sum += expf(x - top); }
  __device__ Mass best() const { return key ? Mass(key) << 32 | uint32_t(~id) : 0; }
};

// The result for a stretch of a row: its likeliest token, and the sum of exp(x - top).
struct Stretch {
  Mass best;
  float top, sum;
};
constexpr int stretches = 16;  // per row, for any number of rows
constexpr int scan_threads = 128, scan_warps = scan_threads / 32;

struct Ids {
  int begin, end;
};
__device__ __forceinline__ Ids ids_of(int stretch, int V) {
  const int length = (V + 4 * stretches - 1) / (4 * stretches) * 4,
            begin = min(V, stretch * length);
  return {begin, min(V, begin + length)};
}

// Reads every stretch of every row once, one block each. Rows with log-probabilities as in training
// need no sum.
static __global__ void __launch_bounds__(scan_threads)
    scan_rows(Stretch* parts, const float* logits, const SampleControls* controls, int V,
              int64_t stride) {
  constexpr int under_way = 7, step = 4 * scan_threads;  // a stretch of GPT-2's is 6.1 steps
  __shared__ Mass bests[scan_warps];
  __shared__ float sums[scan_warps];
  const bool sums_up = !controls[blockIdx.y].as_trained;  // written by the host
  let_next_start();
  wait_for_previous();
  const float* x = logits + blockIdx.y * stride;
  const auto [begin, end] = ids_of(int(blockIdx.x), V);
  RowSeen mine;
  const bool whole = reinterpret_cast<uintptr_t>(x) % sizeof(float4) == 0;
  const int packed = whole ? begin + (end - begin) / 4 * 4 : begin;
  for (int first = begin; first < packed; first += under_way * step) {
    float4 v[under_way];
#pragma unroll
    for (int u = 0; u < under_way; ++u) {
      const int at = first + u * step + 4 * int(threadIdx.x);
      v[u] = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
      if (at < packed) v[u] = *reinterpret_cast<const float4*>(x + at);
    }
#pragma unroll
    for (int u = 0; u < under_way; ++u) {
      const int at = first + u * step + 4 * int(threadIdx.x);
      if (first + u * step < packed)
        mine.see(at, v[u].x), mine.see(at + 1, v[u].y), mine.see(at + 2, v[u].z),
            mine.see(at + 3, v[u].w);
    }
    if (!sums_up || !mine.raise()) continue;
#pragma unroll
    for (int u = 0; u < under_way; ++u)
      if (first + u * step < packed)
        mine.add(v[u].x), mine.add(v[u].y), mine.add(v[u].z), mine.add(v[u].w);
  }
  for (int i = packed + int(threadIdx.x); i < end; i += scan_threads) {
    mine.see(i, x[i]);
    if (sums_up && mine.raise()) mine.add(x[i]);
  }
  const int warp = int(threadIdx.x) / 32;
  Mass best = mine.best();
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const Mass other = __shfl_xor_sync(~0u, best, offset);
    best = other > best ? other : best;
  }
  if (threadIdx.x % 32 == 0) bests[warp] = best;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < scan_warps; ++w) best = bests[w] > best ? bests[w] : best;
  const float top = best ? number_of(uint32_t(best >> 32)) : -INFINITY;
  const float share = mine.sum > 0 ? mine.sum * expf(mine.top - top) : mine.sum;
  const float warp_share = warp_sum(share);
  if (threadIdx.x % 32 == 0) sums[warp] = warp_share;
  __syncthreads();
  if (threadIdx.x > 0) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < scan_warps; ++w) sum += sums[w];
  parts[blockIdx.y * stretches + blockIdx.x] = {best, top, sum};
}

// The largest logit.
__device__ __forceinline__ float likeliest_logit(const Stretch* parts) {
  Mass best = 0;
  for (int n = 0; n < stretches; ++n) best = parts[n].best > best ? parts[n].best : best;
  return number_of(uint32_t(best >> 32));
}

// The id of the largest logit (the lowest among equals), and the sum of exp(x - largest).
__device__ __forceinline__ int likeliest(const Stretch* parts, float* sum) {
  const int lane = int(threadIdx.x) % stretches;
  const Stretch mine = parts[lane];
  Mass best = mine.best;
#pragma unroll
  for (int offset = stretches / 2; offset > 0; offset /= 2) {
    const Mass other = __shfl_xor_sync(~0u, best, offset);
    best = other > best ? other : best;
  }
  const float top = number_of(uint32_t(best >> 32));
  float part = mine.sum > 0 ? mine.sum * expf(mine.top - top) : mine.sum;
#pragma unroll
  for (int offset = stretches / 2; offset > 0; offset /= 2)
    part += __shfl_xor_sync(~0u, part, offset);
  *sum = part;
  return int(~uint32_t(best));
}

}  // namespace hearth::cuda
