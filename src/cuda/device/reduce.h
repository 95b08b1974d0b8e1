// The second stage of every sum over rows: adds the partial sums in a fixed order.
#pragma once

#include <initializer_list>

#include "cuda/device/stream.h"

namespace hearth::cuda {

// out (n) = [out +] scale * (sum over `count` rows of `parts`, `stride` apart).
void add_parts(CudaStream&, float* out, const float* parts, int64_t count, int64_t stride,
               int64_t n, float scale, bool add);

// out (n) = [out +] scale * (a sum).
struct SumOutput {
  float* out = nullptr;  // may be null
  float scale = 1;
  bool add = false;
};
// The same for up to three outputs at once; parts is (count, outputs, n).
void add_parts(CudaStream&, std::initializer_list<SumOutput>, const float* parts, int64_t count,
               int64_t n);

}  // namespace hearth::cuda
