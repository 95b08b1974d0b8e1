// Measures the highest matrix-multiplication rate of this machine, the denominator of MFU.
#pragma once

#include "core/backend.h"

namespace hearth::inline train {

struct GemmShape {
  int64_t m, n, k;
  bool ta = false;
  bool tb = true;
};

// Fills a tensor with one random block, repeated, without a pattern that a kernel could exploit.
void fill_random(Backend&, Tensor);

// Best rate of `repeats` products of random matrices, in FLOP/s.
double measure_gemm(Backend&, DType, const GemmShape&, int repeats);

// The rate of a product that is large enough to reach the peak.
double measure_peak(Backend&, DType);

}  // namespace hearth::inline train
