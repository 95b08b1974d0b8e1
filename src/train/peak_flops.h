// The matrix rate this machine reaches, measured: what MFU is a share of.
#pragma once

#include "core/backend.h"

namespace hearth::inline train {

struct GemmShape {
  int64_t m, n, k;
  bool ta = false;
  bool tb = true;
};

// Numbers without a pattern a kernel could profit from: one block of them, repeated.
void fill_random(Backend&, Tensor);

// Best rate of `repeats` products of random matrices, in FLOP/s.
double measure_gemm(Backend&, DType, const GemmShape&, int repeats);

// The rate of a product large enough to show the machine at its best.
double measure_peak(Backend&, DType);

}  // namespace hearth::inline train
