// The second stage of every sum over rows: adds the partial sums in a fixed order.
#pragma once

#include "cuda/device/stream.h"

namespace hearth::cuda {

// out (n) = [out +] scale * (sum over `count` rows of `parts`, `stride` apart).
void add_parts(CudaStream&, float* out, const float* parts, int64_t count, int64_t stride,
               int64_t n, float scale, bool add);

// The same for two outputs at once; parts is (count, 2, n). Either output may be null.
void add_two_parts(CudaStream&, float* first, float* second, const float* parts, int64_t count,
                   int64_t n, bool add);

}  // namespace hearth::cuda
