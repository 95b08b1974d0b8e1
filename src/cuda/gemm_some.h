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

// As norm_gemm_takes and norm_gemm of gemm_few.h, for 17 to 64 rows; where a block may have as much
// memory as whole rows want.
bool norm_gemm_some_fits(const Card&);
bool norm_gemm_some_takes(int64_t rows, int64_t width, int64_t columns, DType);
void norm_gemm_some(CudaStream&, Tensor c, Tensor x, Tensor gain, Tensor shift, Tensor b,
                    Tensor bias, Tensor prior, const NormSpec&, const GemmSpec&);

}  // namespace hearth::cuda
