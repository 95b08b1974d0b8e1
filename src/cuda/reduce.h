// The second half of every sum over rows: partial sums become one, in a fixed order.
#pragma once

#include "cuda/stream.h"

namespace hearth::cuda {

// out (n) = [out +] scale * (sum over `count` rows of `parts`, `stride` apart).
void add_parts(CudaStream&, float* out, const float* parts, int64_t count, int64_t stride,
               int64_t n, float scale, bool add);

}  // namespace hearth::cuda
