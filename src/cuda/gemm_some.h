// Products of some rows (17 to 64), for decoding many sequences at once: a kernel of our own for
// cards with clusters of blocks (Hopper and later).
#pragma once

#include "cuda/stream.h"

namespace hearth::cuda {

// Whether the card and the code it was given have clusters.
bool gemm_some_runs(const Card&);

// Whether it is for this product: 16-bit elements, 17 to 64 rows of a, b transposed (a weight).
bool gemm_some_takes(const CudaStream&, const Tensor& c, const Tensor& a, const Tensor& b,
                     const GemmSpec&);
void gemm_some(CudaStream&, Tensor c, Tensor aux, Tensor a, Tensor b, Tensor bias, Tensor prior,
               const GemmSpec&);

}  // namespace hearth::cuda
