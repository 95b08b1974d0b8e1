// Products of up to 16 rows, for decoding: our own kernel, which reads the weights once.
#pragma once

#include "cuda/device/stream.h"

namespace hearth::cuda {

// Whether the kernel takes this product: 16-bit, up to 16 rows of a, b transposed (a weight).
bool gemm_rows16_takes(const GemmArgs&);
void gemm_rows16(CudaStream&, const GemmArgs&);

// How the rows of a are normalised as they are read.
struct FewNormed {
  Tensor gain, shift;  // (K), may be absent
  NormSpec norm;
};

// The same with packed weights (core/quantised.h), up to 16 rows of a at a time; K is a multiple of
// 8. Without `normed`, a is used unchanged; with it, a is bf16.
void gemm_rows16_quantised(CudaStream&, const GemmQuantisedArgs&,
                           const FewNormed* normed = nullptr);

// Here a is the normalised x, in bf16. The weights times the gain are rounded, not the rows.
bool norm_gemm_rows16_takes(int64_t rows, int64_t width, int64_t columns, DType);
void norm_gemm_rows16(CudaStream&, const NormGemmArgs&);

}  // namespace hearth::cuda
