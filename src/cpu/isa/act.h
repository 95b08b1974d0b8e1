// The activations of core/math.h on vectors. For a GLU: the function applied to its gate.
#pragma once

#include "core/math.h"
#include "cpu/isa/simd_math.h"

namespace hearth::HEARTH_ISA {

struct VSlope {
  vf y, dy;
};

template <Act A>
HEARTH_INLINE VSlope act_slope(vf x) {
  if constexpr (A == Act::none) {
    return {x, broadcast(1)};
  } else if constexpr (A == Act::gelu_tanh || A == Act::geglu_tanh) {
    const float c = 0.7978845608028654f, k = 0.044715f;
    const vf t = tanh((x + x * x * x * k) * c);
    const vf half = 0.5f * (1.0f + t);
    return {x * half, half + 0.5f * x * (1.0f - t * t) * c * (1.0f + 3 * k * x * x)};
  } else if constexpr (A == Act::gelu_erf || A == Act::geglu) {
    const vf cdf = 0.5f * (1.0f + erf(x * 0.7071067811865476f));
    const vf pdf = 0.3989422804014327f * exp(-0.5f * x * x);
    return {x * cdf, cdf + x * pdf};
  } else if constexpr (A == Act::relu2) {
    const vf r = select(x > zero(), x, select(x != x, x, zero()));
    return {r * r, 2.0f * r};
  } else if constexpr (A == Act::swiglu) {
    const vf s = sigmoid(x);
    return {x * s, s * (1.0f + x * (1.0f - s))};
  } else {
    const vf r = select(x > zero(), x, select(x != x, x, zero()));
    return {r, select(x > zero(), broadcast(1), zero())};
  }
}

template <Act A>
HEARTH_INLINE vf act_value(vf x) {
  return act_slope<A>(x).y;  // the compiler drops what only the slope needs
}

template <Act A>
struct ActTag {};

template <class F>
HEARTH_INLINE void by_act(Act act, F&& f) {
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

}  // namespace hearth::HEARTH_ISA
