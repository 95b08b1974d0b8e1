// Products of bf16 matrices by our own kernel for Hopper: those of training whose epilogue costs
// cuBLASLt more than ours, and the batches of Muon, of whose symmetric products it computes half.
#pragma once

#include "cuda/device/stream.h"

namespace hearth::cuda {

// The kernel has variants, which compute the same bits: blocks that share their operands with more
// or fewer neighbours. The fastest one depends on the shape.
constexpr int gemm_hopper_variants = 3;

// How many of the variants take this product: all or the first, or 0.
int gemm_hopper_takes(const CudaStream&, const GemmArgs&);
// `sums`: the column sums of c are computed as well, for calls for which gemm_hopper_sums() holds.
void gemm_hopper(CudaStream&, const GemmArgs&, int variant = 0,
                 const ColumnSumArgs* sums = nullptr);
inline bool gemm_hopper_sums(const GemmArgs& args) { return args.spec.act_slope; }

// An entry of the kernel table.
bool gemm_glu(Stream&, const GemmGluArgs&);

}  // namespace hearth::cuda
