// cuBLASLt, opened when a card is first used: commands that need no card start without it, and a
// machine without it gets a sentence rather than a loader's error.
#pragma once

#include <cublasLt.h>

namespace hearth::cuda {

struct CublasLt {
#define HEARTH_LT(f) decltype(&cublasLt##f) f = nullptr;
// The formatter would not agree with itself.
// clang-format off
#define HEARTH_LT_ALL(X) \
  X(Create) X(Destroy) X(GetVersion) X(GetStatusString) \
  X(Matmul) X(MatmulAlgoGetHeuristic) X(MatmulAlgoCheck) \
  X(MatmulDescCreate) X(MatmulDescDestroy) X(MatmulDescSetAttribute) \
  X(MatrixLayoutCreate) X(MatrixLayoutDestroy) \
  X(MatmulPreferenceCreate) X(MatmulPreferenceDestroy) X(MatmulPreferenceSetAttribute)
  // clang-format on
  HEARTH_LT_ALL(HEARTH_LT)
#undef HEARTH_LT
};

// Opened once for the process; throws a sentence when it cannot be.
const CublasLt& cublas_lt();

}  // namespace hearth::cuda
