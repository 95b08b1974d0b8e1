// Three kernels per pass: count the digits of each tile, turn the counts into positions (one
// block), move the rows there. Only integer counts use atomics, so the result is deterministic.
#include "cuda/device/sort.h"

#include "cuda/device/device.cuh"

namespace hearth::cuda {
namespace {

constexpr int digits = 256, threads = 256, warps = threads / 32;
constexpr int rounds = 8, tile = threads * rounds;  // a warp moves 32 neighbouring rows per round

// The input of a pass: the caller's keys in the first, the previous pass's output afterwards.
struct Source {
  const int32_t* ids;
  const uint32_t *keys, *rows;
  __device__ uint32_t key(int64_t i) const { return ids ? uint32_t(max(ids[i], 0)) : keys[i]; }
  __device__ uint32_t row(int64_t i) const { return ids ? uint32_t(i) : rows[i]; }
};

__device__ __forceinline__ uint32_t digit_of(uint32_t key, int shift) {
  return key >> shift & (digits - 1);
}

// counts (digits, tiles)
__global__ void __launch_bounds__(threads)
    count_digits(uint32_t* counts, Source from, int64_t n, int shift) {
  __shared__ uint32_t found[digits];
  found[threadIdx.x] = 0;
  __syncthreads();
#pragma unroll
  for (int r = 0; r < rounds; ++r) {
    const int64_t i = int64_t(blockIdx.x) * tile + r * threads + threadIdx.x;
    if (i < n) atomicAdd(&found[digit_of(from.key(i), shift)], 1u);
  }
  __syncthreads();
  counts[int64_t(threadIdx.x) * gridDim.x + blockIdx.x] = found[threadIdx.x];
}

// Exclusive prefix sum of the counts, by one block; each thread handles a contiguous range.
__global__ void __launch_bounds__(1024) place_digits(uint32_t* counts, int64_t n) {
  __shared__ uint32_t warp_totals[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t size = (n + 1023) / 1024;
  const int64_t begin = min(n, threadIdx.x * size), end = min(n, begin + size);
  uint32_t total = 0;
  for (int64_t i = begin; i < end; ++i) total += counts[i];
  uint32_t upto = total;  // inclusive sum over the lanes
  for (int offset = 1; offset < 32; offset *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, upto, offset);
    if (lane >= offset) upto += other;
  }
  if (lane == 31) warp_totals[warp] = upto;
  __syncthreads();
  uint32_t place = upto - total;
  for (int w = 0; w < warp; ++w) place += warp_totals[w];
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t count = counts[i];
    counts[i] = place;
    place += count;
  }
}

__global__ void __launch_bounds__(threads)
    move_rows(uint32_t* keys, uint32_t* rows, const uint32_t* places, Source from, int64_t n,
              int shift) {
  __shared__ uint32_t found[warps][digits];  // counts, then each warp's first position of a digit
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int w = 0; w < warps; ++w) found[w][threadIdx.x] = 0;
  __syncthreads();
  const int64_t first = int64_t(blockIdx.x) * tile + warp * (32 * rounds) + lane;
  uint32_t key[rounds], rank[rounds];
#pragma unroll
  for (int r = 0; r < rounds; ++r) {
    const bool mine = first + r * 32 < n;
    key[r] = mine ? from.key(first + r * 32) : 0;
    // Lanes past the end must match no digit.
    const uint32_t digit = mine ? digit_of(key[r], shift) : digits;
    const uint32_t same = __match_any_sync(~0u, digit);
    const uint32_t before = __popc(same & ((1u << lane) - 1));
    if (mine) rank[r] = found[warp][digit] + before;
    __syncwarp();
    if (mine && before == 0) found[warp][digit] += __popc(same);
    __syncwarp();
  }
  __syncthreads();
  uint32_t place = places[int64_t(threadIdx.x) * gridDim.x + blockIdx.x];
  for (int w = 0; w < warps; ++w) {
    const uint32_t count = found[w][threadIdx.x];
    found[w][threadIdx.x] = place;
    place += count;
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < rounds; ++r)
    if (first + r * 32 < n) {
      const uint32_t to = found[warp][digit_of(key[r], shift)] + rank[r];
      keys[to] = key[r];
      rows[to] = from.row(first + r * 32);
    }
}

int64_t tiles_of(int64_t n) { return ceil_div(n, tile); }

}  // namespace

int64_t sort_bytes(int64_t n) { return round_up((4 * n + digits * tiles_of(n)) * 4, 256); }

SortedRows sort_rows(CudaStream& s, void* memory, const int32_t* keys, int64_t n, int64_t limit) {
  auto* at = static_cast<uint32_t*>(memory);
  uint32_t *places = at + 4 * n, *to_keys = at, *to_rows = at + n;
  uint32_t *other_keys = at + 2 * n, *other_rows = at + 3 * n;
  const auto tiles = unsigned(tiles_of(n));
  Source from{keys, nullptr, nullptr};
  for (int shift = 0; shift == 0 || (limit - 1) >> shift; shift += 8) {
    count_digits<<<tiles, threads, 0, s.handle>>>(places, from, n, shift);
    place_digits<<<1, 1024, 0, s.handle>>>(places, int64_t(digits) * tiles);
    move_rows<<<tiles, threads, 0, s.handle>>>(to_keys, to_rows, places, from, n, shift);
    from = {nullptr, to_keys, to_rows};
    std::swap(to_keys, other_keys);
    std::swap(to_rows, other_rows);
  }
  check_launch("sort_rows");
  return {from.keys, from.rows};
}

}  // namespace hearth::cuda
