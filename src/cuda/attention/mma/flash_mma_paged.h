// Flash attention over a paged cache, for long runs of rows: launch arguments of its kernels.
#pragma once

#include "cuda/attention/mma/flash_mma.h"

namespace hearth::cuda {

constexpr int most_rows_by_pieces = 64;  // programs up to this size have no kernel for long runs
constexpr int shortest_run = 17;         // rows of one sequence that count as a long run

struct FlashPaged {
  FlashForward call;  // B = 1 and T rows; k and v point at the first panel of block 0
  const int32_t *positions, *sequences;  // (T)
  const int32_t* tables;                 // (sequences, width)
  int width;
  int64_t block;           // elements from one block of the cache to the next
  int64_t k_head, v_head;  // from one head's panel to the next
  bool fp8;                // cache elements are bytes in the format of core/fp8.h
};

template <int D>
void flash_mma_paged(const FlashPaged&, CudaStream&);
// The remaining rows, one by one; `all`: rows of long runs as well. The bits are the same.
template <int D>
void flash_mma_rows(const FlashPaged&, bool all, CudaStream&);

#ifdef __CUDACC__
// Whether row n belongs to a run of at least `shortest_run` adjacent rows of its sequence.
__device__ inline bool in_long_run(const int32_t* sequences, const int32_t* positions, int n,
                                   int N) {
  if (positions[n] < 0) return false;
  const int sequence = sequences[n];
  int same = 0;
#pragma unroll
  for (int i = 1 - shortest_run; i < shortest_run; ++i) {
    const int at = min(max(n + i, 0), N - 1);
    same += at == n + i && sequences[at] == sequence && positions[at] >= 0;
  }
  return same >= shortest_run;
}

// The same, computed by all threads of a block together.
__device__ inline bool block_in_long_run(const int32_t* sequences, const int32_t* positions, int n,
                                         int N) {
  const int i = int(threadIdx.x), at = n + 1 - shortest_run + i;
  const bool near = i < 2 * shortest_run - 1 && at >= 0 && at < N;
  const bool same = near && sequences[at] == sequences[n] && positions[at] >= 0;
  return __syncthreads_count(same) >= shortest_run;
}
#endif

}  // namespace hearth::cuda
