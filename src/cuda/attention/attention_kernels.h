// The attention entries of the CUDA table; their contract is in core/kernel_args.h. On CUDA
// attention_cached agrees with attention to rounding, not to the bit: decoding cuts the keys into
// other pieces. Its own bits do not depend on the batch. In a batch-invariant stream both add up in
// one order, and agree to the bit.
#pragma once

#include <string>

#include "core/kernels.h"

namespace hearth::cuda {

void attention(Stream&, const AttentionArgs&);
void attention_bwd(Stream&, const AttentionBwdArgs&);
void attention_cached(Stream&, const AttentionCachedArgs&);

// Why there is no code for heads of q and k and of v of these widths and dtype, in words; empty:
// there is.
std::string refused_heads(int64_t qk, int64_t v, DType);
// Throws unless there is code for heads of these widths and dtype.
void check_head_size(const char* op, DType, int64_t qk, int64_t v);
// The one tensor that holds q, k and v side by side; other views throw.
Tensor packed_qkv_of(const AttentionCachedArgs&);

}  // namespace hearth::cuda
