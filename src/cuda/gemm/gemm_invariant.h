// Products whose rows have the same bits whatever else is in the batch: the choice of an algorithm
// that adds up in the order of one fixed for all numbers of rows.
#pragma once

#include "cuda/gemm/gemm_product.h"

namespace hearth::cuda {

// The measure below of a call, as a suffix for its name among the choices kept: one made by another
// measure is none.
std::string measure_name(const GemmProducts&, const GemmCall&);

// For a call of the forward pass. Of what cuBLASLt proposes, the fastest by which every row comes
// out as in a product of 1024 rows by the first proposal for that. Tried on random numbers whose
// products cancel, so that nothing is left but the order of the additions.
GemmChoice tune_invariant(GemmProducts&, const GemmCall&);

}  // namespace hearth::cuda
