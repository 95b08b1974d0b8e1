// cuBLASLt, loaded when a GPU is first used: commands that need no GPU start without it, and a
// machine without it gets a clear message instead of a loader error.
#pragma once

#include <cublasLt.h>

namespace hearth::cuda {

struct CublasLt {
#define HEARTH_LT(f) decltype(&cublasLt##f) f = nullptr;
// clang-format keeps changing this macro.
// clang-format off
#define HEARTH_LT_ALL(X) \
  X(Create) X(Destroy) X(GetVersion) X(GetStatusString) \
  X(Matmul) X(MatmulAlgoGetHeuristic) X(MatmulAlgoCheck) \
  X(MatmulDescCreate) X(MatmulDescDestroy) X(MatmulDescSetAttribute) \
  X(MatrixLayoutCreate) X(MatrixLayoutDestroy) X(MatrixLayoutSetAttribute) \
  X(MatmulPreferenceCreate) X(MatmulPreferenceDestroy) X(MatmulPreferenceSetAttribute)
  // clang-format on
  HEARTH_LT_ALL(HEARTH_LT)
#undef HEARTH_LT
};

// Loaded once per process; throws with a message if it cannot be.
const CublasLt& cublas_lt();

}  // namespace hearth::cuda
