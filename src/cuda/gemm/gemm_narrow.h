// Narrow products (few columns, a short sum) whose rows keep their bits in any batch.
#pragma once

#include "cuda/device/stream.h"

namespace hearth::cuda {

// Whether the kernel takes this product: a weight of at most 64 x 64, transposed. The answer does
// not depend on the number of rows.
bool gemm_narrow_takes(const GemmArgs&);
void gemm_narrow(CudaStream&, const GemmArgs&);

}  // namespace hearth::cuda
