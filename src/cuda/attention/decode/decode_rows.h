// Decoding of many rows over a 16-bit paged cache, on the tensor cores.
#pragma once

#include "cuda/device/stream.h"

namespace hearth::cuda {

struct Decode;

constexpr int decode_rows_heads = 8;  // query heads per block, at most
constexpr bool decode_rows_takes(int D) { return D == 64 || D == 128; }

// One block per row, KV head and eight query heads, over all keys of the row.
template <class T>
void decode_rows(const Decode&, CudaStream&);

}  // namespace hearth::cuda
