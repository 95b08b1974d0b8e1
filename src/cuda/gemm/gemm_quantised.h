// Products with packed weights (int8, int4 and fp8 of core/quantised.h). Activations are f32, bf16
// or f16 and are not quantised.
#pragma once

#include "core/quantised.h"
#include "cuda/device/stream.h"

namespace hearth::cuda {

struct FewNormed;

// The entry of the kernel table.
void gemm_quantised(Stream&, const GemmQuantisedArgs&);

// The layout of packed weights with at least `rows` rows of K; throws for anything else.
QuantLayout packed_layout(const Tensor& w, int64_t rows, int64_t K);

// gemm_rows16_quantised() by format. Each has its own file, to compile in parallel.
using FewPackedLaunch = void(CudaStream&, const GemmQuantisedArgs&, const FewNormed*);
FewPackedLaunch few_int8, few_int4, few_fp8;
bool few_packed_fill(const Card&, int64_t N, int64_t K);  // few_fill() of gemm_rows16.cuh

// Unpacks rows of w from `first` on, which must begin a panel, to a matrix (rows, K) of floats.
void unpack_weights(CudaStream&, Tensor to, Tensor w, const QuantLayout&, int64_t first);
// Unpacks the matrices of groups that a product has rows for. `to` is (groups, N, K), the first
// group begins at row `first` of w, and its rows at offsets[0], as in GroupedGemmArgs.
void unpack_groups(CudaStream&, Tensor to, Tensor w, int64_t first, const int* offsets);

// Bytes of weights that a product unpacks at once, if it can be sliced.
constexpr int64_t most_unpacked = int64_t(64) << 20;

}  // namespace hearth::cuda
