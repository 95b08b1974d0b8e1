// The range of document ids in each block of tokens. The flash kernels use it to skip blocks of
// keys that no query of a block may see.
#pragma once

#include <climits>

#include "cuda/attention/attention.h"

namespace hearth::cuda {

constexpr int document_block = 64;  // tokens
constexpr int document_blocks(int T) { return (T + document_block - 1) / document_block; }

// The smallest and the largest value of documents[begin, end), computed by a whole warp.
__device__ __forceinline__ int2 document_range(const int32_t* documents, int begin, int end) {
  int2 range{INT_MAX, INT_MIN};
  for (int t = begin + int(threadIdx.x) % 32; t < end; t += 32)
    range = {min(range.x, documents[t]), max(range.y, documents[t])};
  return {__reduce_min_sync(~0u, range.x), __reduce_max_sync(~0u, range.y)};
}

// Fills ranges (B, document_blocks(T)) with the range of each block.
void find_document_ranges(int2* ranges, const AttnCall&, CudaStream&);

}  // namespace hearth::cuda
