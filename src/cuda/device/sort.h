// A stable order of rows by small integer keys, made on the card: a radix sort of eight bits a
// pass.
#pragma once

#include "cuda/device/stream.h"

namespace hearth::cuda {

struct SortedRows {
  const uint32_t* keys;  // ascending
  const uint32_t* rows;  // the row each came from; ascending among equal keys
};

int64_t sort_bytes(int64_t n);

// Keys lie in [0, limit); a negative one counts as 0. `memory` holds sort_bytes(n) and the result.
SortedRows sort_rows(CudaStream&, void* memory, const int32_t* keys, int64_t n, int64_t limit);

}  // namespace hearth::cuda
