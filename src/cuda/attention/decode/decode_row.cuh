// What the kernels that decode over a paged cache share: a row, the keys it sees, and where its own
// key and value are stored.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/attention/decode/decode_keys.cuh"
#include "cuda/attention/mma/flash_mma_paged.h"
#include "cuda/device/dependent_launch.cuh"

namespace hearth::cuda {

struct Decode {
  const void *qkv, *cache;
  void* y;
  void* new_cache;         // the cache, if the kernel stores the rows' own keys and values; or null
  float* parts = nullptr;  // (N * H, splits, D + 2): values, largest score, sum of exponentials
  uint32_t* tickets = nullptr;  // per row and head group: splits that have finished
  const float* slopes;
  const float* bias;  // (H, distances), or absent
  const int32_t *positions, *sequences, *tables;
  int N, H, G, D, piece, pieces, width, window;  // width: blocks per table
  int depth;                                     // of these blocks, those that rows see at most
  int V;  // width of a head of v; equals D except in the kernels that decode_cached.cu names
  int distances;
  float scale, softcap;
  bool leaves_runs;  // another kernel handles the rows of long runs
  bool apart;        // row n belongs to sequence n

  __device__ int sequence_of(int row) const { return apart ? row : sequences[row]; }
  __device__ const float* bias_of(int head) const {
    return bias ? bias + int64_t(head) * distances : nullptr;
  }
  template <class T>
  __device__ const T* own_of(int row) const {
    return static_cast<const T*>(qkv) + row * int64_t(H + 2 * G) * D;
  }
};

// The keys that row `at` sees, and the splits they lie in.
struct Seen {
  int begin, end, first_piece, end_piece;
  __device__ Seen(int at, int window, int piece) {
    begin = at < window ? 0 : at - window + 1, end = at + 1;
    first_piece = begin / piece, end_piece = at < 0 ? 0 : at / piece + 1;
  }
  __device__ int pieces() const { return end_piece - first_piece; }
};

// What the bias of a head adds to the score of a key that is `away` tokens before.
__device__ inline float bias_at(const float* of_head, int distances, int away) {
  return of_head ? __ldg(of_head + min(max(away, 0), distances - 1)) : 0;
}

template <class T>
__device__ void store_float(T* to, float v) {
  if constexpr (sizeof(T) == 4)
    *to = v;
  else if constexpr (std::is_same_v<T, __half>)
    *to = __float2half_rn(v);
  else
    *to = __float2bfloat16_rn(v);
}

// Stores the row's own k and v of one KV head in its cache block.
template <int Threads, class T>
__device__ void store_own(const Decode& a, const T* k, int64_t to_v, int64_t block, int g, int at) {
  T* panel = static_cast<T*>(a.new_cache) +
             ((block * 2 * a.G + g) * block_tokens + at % block_tokens) * a.D;
  for (int i = int(threadIdx.x); i < 2 * a.D; i += Threads) {
    const int half = i / a.D, d = i % a.D;
    panel[half * int64_t(a.G) * block_tokens * a.D + d] = k[half * to_v + d];
  }
}

// Whether this block has keys of the row to process. If not, writes the zeros of a padding row.
template <int Threads, class T>
__device__ bool block_has_row(const Decode& a, const Seen& seen, int row, int heads, T* y) {
  const bool padding = seen.end <= 0 && blockIdx.y == 0;
  if (int(blockIdx.y) >= seen.first_piece && int(blockIdx.y) < seen.end_piece &&
      !(a.leaves_runs && block_in_long_run(a.sequences, a.positions, row, a.N)))
    return true;
  // At least one block of every launch waits, so that the kernels complete in order.
  if (padding || (blockIdx.x == 0 && blockIdx.y == 0)) wait_for_previous();
  for (int i = int(threadIdx.x); padding && i < heads * a.D; i += Threads) store_float(y + i, 0.0f);
  return false;
}

// Called by all threads of a block.
template <class T, class C>
__device__ Keys<T, C> keys_of_row(const Decode& a, int row, int g, int at, int sequence) {
  const int64_t panel = int64_t(block_tokens) * (a.D + std::is_same_v<C, uint8_t>);
  const int64_t token = int64_t(a.H + 2 * a.G) * a.D;
  // Rows of one sequence are adjacent and in order.
  const bool beside =
      a.new_cache && !a.apart && int(threadIdx.x) <= row && a.sequences[threadIdx.x] == sequence;
  const int fresh = !a.new_cache ? 0 : a.apart ? 1 : __syncthreads_count(beside);
  return {.cache = static_cast<const C*>(a.cache) + g * panel,
          .fresh = a.own_of<T>(row) + (a.H + g) * a.D - at * token,
          .table = a.tables + int64_t(sequence) * a.width,
          .block = 2 * a.G * panel,
          .to_v = a.G * panel,
          .fresh_row = token,
          .fresh_v = int64_t(a.G) * a.D,
          .first_fresh = at + 1 - fresh,
          .D = a.D};
}

}  // namespace hearth::cuda
