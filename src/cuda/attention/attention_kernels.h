// The attention entries of the CUDA kernel table; their contract is in core/kernel_args.h. On CUDA,
// attention_cached equals attention up to rounding, not to the bit, because decoding splits the
// keys differently. Its own bits do not depend on the batch. On a batch-invariant stream both add
// in the same order and agree to the bit.
#pragma once

#include <string>

#include "core/kernels.h"

namespace hearth::cuda {

void attention(Stream&, const AttentionArgs&);
void attention_bwd(Stream&, const AttentionBwdArgs&);
void attention_cached(Stream&, const AttentionCachedArgs&);

// Why there is no kernel for heads of these widths (q and k, then v) and dtype; empty: there is.
std::string refused_heads(int64_t qk, int64_t v, DType);
// Throws unless there is a kernel for heads of these widths and dtype.
void check_head_size(const char* op, DType, int64_t qk, int64_t v);
// The tensor that holds q, k and v packed; other views throw.
Tensor packed_qkv_of(const AttentionCachedArgs&);

}  // namespace hearth::cuda
