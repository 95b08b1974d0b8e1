// Products of 17 to 64 rows, for decoding many sequences at once: our own kernel for Hopper.
#pragma once

#include "cuda/device/stream.h"

namespace hearth::cuda {

// Whether the kernel takes this product: 16-bit, 17 to 64 rows of a, b transposed (a weight).
bool gemm_rows64_takes(const CudaStream&, const GemmArgs&);
void gemm_rows64(CudaStream&, const GemmArgs&);

// Here a is the normalised x, not rounded: gain is multiplied into b instead, and rounded there.
bool norm_gemm_rows64_takes(const CudaStream&, int64_t rows, int64_t width, int64_t columns, DType);
void norm_gemm_rows64(CudaStream&, const NormGemmArgs&);

}  // namespace hearth::cuda
