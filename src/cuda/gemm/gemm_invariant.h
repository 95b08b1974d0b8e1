// Batch-invariant products: a row has the same bits whatever else is in the batch. Achieved by
// choosing an algorithm that adds in the order of one reference algorithm, for any number of rows.
#pragma once

#include "cuda/gemm/gemm_product.h"

namespace hearth::cuda {

// Names the reference algorithm of a call, as a suffix of its key among the stored choices: a
// choice made against another reference does not count.
std::string measure_name(const GemmProducts&, const GemmCall&);

// For a product of the forward pass. Returns the fastest proposal of cuBLASLt whose rows equal
// those of a product of 1024 rows by the library's first proposal for that size. They are compared
// on random data whose products cancel, so that only the order of the additions remains, and on
// data that shows in which order bias and prior are added.
GemmChoice tune_invariant(GemmProducts&, const GemmCall&);

}  // namespace hearth::cuda
