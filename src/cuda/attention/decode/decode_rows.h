// Decoding of many rows over a paged cache of 16 bits, on the tensor cores.
#pragma once

#include "cuda/device/stream.h"

namespace hearth::cuda {

struct Decode;

constexpr int decode_rows_heads = 8;  // of queries to a block, at most
constexpr bool decode_rows_takes(int D) { return D == 64 || D == 128; }

// A block for each row, head of keys and eight heads of queries, over all of its keys.
template <class T>
void decode_rows(const Decode&, CudaStream&);

}  // namespace hearth::cuda
