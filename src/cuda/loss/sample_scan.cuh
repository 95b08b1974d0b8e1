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

// What a thread has seen of a row: the likeliest token as (key, ~id), and the sum of exp(x - top).
struct RowSeen {
  Mass best = 0;
  float top = -INFINITY, sum = 0;

  template <int n, class Id>
  __device__ __forceinline__ void add(const float (&v)[n], const Id& id) {
    float now = top;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const Mass k = Mass(key_of(v[i])) << 32 | uint32_t(~id(i));
      best = k > best ? k : best;
      now = fmaxf(now, v[i]);
    }
    if (now == -INFINITY) return;
    sum *= expf(top - now), top = now;
#pragma unroll
    for (int i = 0; i < n; ++i) sum += expf(v[i] - top);
  }
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

// Reads every stretch of every row once, one block each.
static __global__ void __launch_bounds__(scan_threads)
    scan_rows(Stretch* parts, const float* logits, int V, int64_t stride) {
  constexpr int under_way = 4;
  __shared__ Mass bests[scan_warps];
  __shared__ float sums[scan_warps];
  let_next_start();
  wait_for_previous();
  const float* x = logits + blockIdx.y * stride;
  const auto [begin, end] = ids_of(int(blockIdx.x), V);
  RowSeen mine;
  const bool whole = reinterpret_cast<uintptr_t>(x) % sizeof(float4) == 0;
  const int packed = whole ? begin + (end - begin) / 4 * 4 : begin;
  for (int i = begin + 4 * int(threadIdx.x); i < packed; i += 4 * under_way * scan_threads) {
    float v[4 * under_way];
#pragma unroll
    for (int u = 0; u < under_way; ++u) {
      float4 p = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
      const int at = i + 4 * u * scan_threads;
      if (at < packed) p = *reinterpret_cast<const float4*>(x + at);
      v[4 * u] = p.x, v[4 * u + 1] = p.y, v[4 * u + 2] = p.z, v[4 * u + 3] = p.w;
    }
    mine.add(v, [&](int k) { return i + 4 * (k / 4) * scan_threads + k % 4; });
  }
  for (int i = packed + int(threadIdx.x); i < end; i += scan_threads) {
    const float v[1] = {x[i]};
    mine.add(v, [&](int) { return i; });
  }
  const int warp = int(threadIdx.x) / 32;
  Mass best = mine.best;
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
