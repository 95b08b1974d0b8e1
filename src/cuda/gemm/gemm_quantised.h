// Products with packed weights: int8, int4 and fp8 of core/quantised.h by f32, bf16 or f16 that are
// not rounded.
#pragma once

#include "core/quantised.h"
#include "cuda/device/stream.h"

namespace hearth::cuda {

struct FewNormed;

// The entry of the table.
void gemm_quantised(Stream&, const GemmQuantisedArgs&);

// Where things lie in packed weights of at least so many rows of K; refuses what is not that.
QuantLayout packed_layout(const Tensor& w, int64_t rows, int64_t K);

// gemm_rows16_quantised() by format: each in a file of its own, for the time they take to compile.
using FewPackedLaunch = void(CudaStream&, const GemmQuantisedArgs&, const FewNormed*);
FewPackedLaunch few_int8, few_int4, few_fp8;

// Rows of w from `first` on, which begins a panel, to a plain matrix (rows, K) of any float.
void unpack_weights(CudaStream&, Tensor to, Tensor w, const QuantLayout&, int64_t first);

}  // namespace hearth::cuda
