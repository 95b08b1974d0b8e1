// The grouped products of a mixture of experts: rows sorted by group, each group with a matrix of
// its own. Where groups begin is known on the device only, so every launch has a static shape and
// the blocks find their tiles themselves.
//
// Batch invariance: a row of c has the same bits whatever other rows are in the call, however many
// rows its group has, and wherever it lies in a tile. Each kernel adds over K in one fixed order
// without split-K, and dtype, N, K and alignment alone choose the kernel. A gradient of weights
// adds the rows of its group in order. No kernel uses atomics on floats.
#pragma once

#include "core/moe_args.h"
#include "cuda/device/stream.h"

namespace hearth::cuda {

// Entries of the kernel table.
void grouped_gemm(Stream&, const GroupedGemmArgs&);
void grouped_gemm_weights(Stream&, const GroupedGemmWeightsArgs&);

// The blocks keep the bounds of all groups in shared memory.
constexpr int64_t most_groups = 4096;

enum class GroupedForm : uint8_t {
  transposed,  // c = a b^T, b (G, N, K)
  plain,       // c = a b, b (G, K, N)
  weights      // db = dc^T a
};

// One call of either kind as the kernels see it: rows of `left`, and of `right` with `weights`, are
// those of the groups.
struct GroupedCall {
  GroupedForm form = GroupedForm::transposed;
  DType dtype = DType::bf16;      // of left and right
  DType out_dtype = DType::bf16;  // of out
  const void* left = nullptr;     // a; with `weights` dc
  const void* right = nullptr;    // b; with `weights` a
  void* out = nullptr;            // c or db
  const int* offsets = nullptr;
  const int* gather = nullptr;  // of rows of a; null: none
  int64_t rows = 0;             // R
  int64_t tokens = 0;           // rows of a
  int64_t groups = 0, N = 0, K = 0;
  bool add = false;
};

// wgmma on Hopper: 16-bit floats whose rows begin at multiples of 16 bytes.
bool gemm_grouped_hopper_takes(const CudaStream&, const GroupedCall&);
void gemm_grouped_hopper(CudaStream&, const GroupedCall&);
// mma.sync on Ampere and later: the same rows.
bool gemm_grouped_mma_takes(const GroupedCall&);
void gemm_grouped_mma(CudaStream&, const GroupedCall&);
// Plain FMAs, for f32 and for rows that begin anywhere.
void gemm_grouped_simple(CudaStream&, const GroupedCall&);

}  // namespace hearth::cuda
