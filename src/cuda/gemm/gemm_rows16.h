// Products of few rows, for decoding: a kernel of our own that reads the weights once.
#pragma once

#include "cuda/device/stream.h"

namespace hearth::cuda {

// Whether it is for this product: 16-bit elements, up to 16 rows of a, b transposed (a weight).
bool gemm_rows16_takes(const GemmArgs&);
void gemm_rows16(CudaStream&, const GemmArgs&);

// How the rows of a are normed on their way in.
struct FewNormed {
  Tensor gain, shift;  // (K), may be absent
  NormSpec norm;
};

// The same with packed weights (core/quantised.h), 16 rows of a at a time; K is a multiple of 8.
// Without `normed` a is taken as it is.
void gemm_rows16_quantised(CudaStream&, const GemmQuantisedArgs&,
                           const FewNormed* normed = nullptr);

// With a the normed x, rounded as the norm's own kernel rounds it.
bool norm_gemm_rows16_takes(int64_t rows, int64_t width, int64_t columns, DType);
void norm_gemm_rows16(CudaStream&, const NormGemmArgs&);

}  // namespace hearth::cuda
