// Stands in for src/cuda/device/quick_math.cuh where device code is compiled for the host.
#pragma once

#include <cmath>

#define __device__
#define __forceinline__ inline

namespace hearth::cuda {

inline float exp2_fast(float x) { return std::exp2(x); }
inline float reciprocal_fast(float x) { return 1 / x; }
inline float exp_fast(float x) { return std::exp(x); }

}  // namespace hearth::cuda
