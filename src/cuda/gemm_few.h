// Products of few rows, for decoding: a kernel of our own that reads the weights once.
#pragma once

#include "cuda/stream.h"

namespace hearth::cuda {

// Whether it is for this product: 16-bit elements, up to 16 rows of a, b transposed (a weight).
bool gemm_few_takes(const Tensor& c, const Tensor& a, const Tensor& b, const GemmSpec&);
void gemm_few(CudaStream&, Tensor c, Tensor aux, Tensor a, Tensor b, Tensor bias, Tensor prior,
              const GemmSpec&);

// With a the normed x, rounded as the norm's own kernel rounds it.
bool norm_gemm_few_takes(int64_t rows, int64_t width, int64_t columns, DType);
void norm_gemm_few(CudaStream&, Tensor c, Tensor x, Tensor gain, Tensor shift, Tensor b,
                   Tensor bias, Tensor prior, const NormSpec&, const GemmSpec&);

}  // namespace hearth::cuda
