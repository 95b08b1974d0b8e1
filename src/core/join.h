// Joins nodes of a tape that a kernel can compute together.
#pragma once

#include "core/kernels.h"
#include "core/tape.h"

namespace hearth::inline core {

// In a tape that does not train, fuses a norm into the products that read it, if nothing else reads
// it and the backend has a fused kernel for that many rows; prune() then removes the norm.
void join_norms(Tape&, const Kernels&, Stream&);
// Joins products with the GLUs that read them, and the gradients of both, for kernels that compute
// them together (Kernels::gemm_glu). The result is the same for every backend.
void join_gates(Tape&);
// Lets an op whose result is summed over its rows compute those sums too (Op::sums). The result
// is the same for every backend.
void join_sums(Tape&);

}  // namespace hearth::inline core
