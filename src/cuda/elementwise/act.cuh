// The activations of core/math.h on the device. For bf16 and f16 the exponential and the reciprocal
// are the hardware's approximations (error about 1e-6), far below the rounding of the result. For a
// GLU this is the function applied to its gate.
#pragma once

#include <type_traits>

#include "core/math.h"
#include "cuda/device/quick_math.cuh"

namespace hearth::cuda {

// 1 / (1 + exp(-x)).
template <bool quick>
__device__ __forceinline__ float sigmoid(float x) {
  if constexpr (quick)
    return reciprocal_fast(1.0f + exp_fast(-x));
  else
    return 1.0f / (1.0f + expf(-x));
}

// The normal distribution at x.
struct Normal {
  float cdf, pdf;
};

template <bool quick>
__device__ __forceinline__ Normal normal(float x) {
  if constexpr (quick) {
    // Abramowitz and Stegun 7.1.26 for erfc(|x| / sqrt 2), absolute error 1.5e-7; it shares its
    // exponential with the density.
    const float e = exp_fast(-0.5f * x * x);
    const float t = reciprocal_fast(fmaf(0.3275911f * 0.7071067811865476f, fabsf(x), 1.0f));
    float p = fmaf(1.061405429f, t, -1.453152027f);
    p = fmaf(p, t, 1.421413741f);
    p = fmaf(p, t, -0.284496736f);
    p = fmaf(p, t, 0.254829592f);
    const float tail = 0.5f * p * t * e;
    return {x > 0 ? 1.0f - tail : tail, 0.3989422804014327f * e};
  } else {
    return {0.5f * erfcf(x * -0.7071067811865476f), 0.3989422804014327f * expf(-0.5f * x * x)};
  }
}

template <Act A, bool quick>
__device__ __forceinline__ Slope<float> act_slope(float x) {
  if constexpr (A == Act::gelu_tanh || A == Act::geglu_tanh) {
    // (1 + tanh u) / 2 is the sigmoid of 2u, which keeps its precision where tanh nears -1.
    const float c = 0.7978845608028654f, k = 0.044715f, xx = x * x;
    const float s = sigmoid<quick>(2 * c * x * fmaf(k, xx, 1.0f));
    return {x * s, s + x * (2 * c) * s * (1.0f - s) * fmaf(3 * k, xx, 1.0f)};
  } else if constexpr (A == Act::gelu_erf || A == Act::geglu) {
    const Normal n = normal<quick>(x);
    return {x * n.cdf, n.cdf + x * n.pdf};
  } else if constexpr (A == Act::swiglu) {
    const float s = sigmoid<quick>(x);
    return {x * s, s * (1.0f + x * (1.0f - s))};
  } else {
    // NaN is kept: it must reach the loss to be noticed.
    const float r = x > 0 || x != x ? x : 0.0f;
    if constexpr (A == Act::relu2) return {r * r, 2.0f * r};
    if constexpr (A == Act::reglu) return {r, x > 0 ? 1.0f : 0.0f};
  }
  return {x, 1.0f};
}

template <Act A, class T>
__device__ __forceinline__ Slope<float> act_slope_for(float x) {
  return act_slope<A, !std::is_same_v<T, float>>(x);
}
template <Act A, class T>
__device__ __forceinline__ float act_value_for(float x) {
  return act_slope_for<A, T>(x).y;  // the compiler removes what only the slope needs
}

template <Act A>
struct ActTag {
  static constexpr Act value = A;
};

template <class F>
void by_act(Act act, F&& f) {
  switch (act) {
    case Act::none:
      return f(ActTag<Act::none>{});
    case Act::gelu_tanh:
      return f(ActTag<Act::gelu_tanh>{});
    case Act::gelu_erf:
      return f(ActTag<Act::gelu_erf>{});
    case Act::relu2:
      return f(ActTag<Act::relu2>{});
    case Act::swiglu:
      return f(ActTag<Act::swiglu>{});
    case Act::geglu:
      return f(ActTag<Act::geglu>{});
    case Act::reglu:
      return f(ActTag<Act::reglu>{});
    case Act::geglu_tanh:
      return f(ActTag<Act::geglu_tanh>{});
  }
}

}  // namespace hearth::cuda
