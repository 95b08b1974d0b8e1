// Stable sort of rows by small integer keys on the GPU: a radix sort with eight bits per pass.
#pragma once

#include "cuda/device/stream.h"

namespace hearth::cuda {

struct SortedRows {
  const uint32_t* keys;  // ascending
  const uint32_t* rows;  // the original row of each key; ascending among equal keys
};

int64_t sort_bytes(int64_t n);

// Keys are in [0, limit); negative keys count as 0. The sort_bytes(n) of `memory` hold the result.
SortedRows sort_rows(CudaStream&, void* memory, const int32_t* keys, int64_t n, int64_t limit);

}  // namespace hearth::cuda
