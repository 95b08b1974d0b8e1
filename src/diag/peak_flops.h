// Measures the limits of this machine: the highest matrix-multiplication rate, which is the
// denominator of MFU, and the memory bandwidth.
#pragma once

#include "core/backend.h"

namespace hearth::inline diag {

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

// Bandwidth of a large copy in bytes per second, counting reads and writes.
double measure_bandwidth(Backend&);

}  // namespace hearth::inline diag
