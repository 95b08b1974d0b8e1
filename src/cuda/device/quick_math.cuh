// Powers of two and reciprocals as the hardware approximates them, in one instruction each: results
// and arguments below 2^-126 count as 0.
#pragma once

namespace hearth::cuda {

// 2^x, relative error 2^-22.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x, relative error 2^-23.
__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// e^x. The product with log2(e) is rounded, so the relative error grows with |x|.
__device__ __forceinline__ float exp_fast(float x) { return exp2_fast(x * 1.4426950408889634f); }

}  // namespace hearth::cuda
