// What products of few and of some rows do alike: the activation on the way out.
#pragma once

#include "cuda/act.cuh"
#include "cuda/mma.cuh"

namespace hearth::cuda {

template <class T>
__device__ __forceinline__ float act_of_product(Act act, float x) {
  if (act == Act::gelu_tanh) return act_value_for<Act::gelu_tanh, T>(x);
  if (act == Act::gelu_erf) return act_value_for<Act::gelu_erf, T>(x);
  return act_value_for<Act::relu2, T>(x);  // a GLU is no act of a product
}

}  // namespace hearth::cuda
