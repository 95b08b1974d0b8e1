// What is left of a product's epilogue where cuBLASLt has none, or a slower one. Memory bound: each
// operand is read once in 16-byte vectors.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/gemm.h"

namespace hearth::cuda {
namespace {

constexpr int threads = 256;

template <class T>
struct alignas(16) Vector {
  static constexpr int size = 16 / sizeof(T);
  T x[size];
};

template <class T>
__device__ float get(T x) {
  return float(x);
}
template <class T>
__device__ T put(float x) {
  return T(x);
}

template <class T>
struct Operands {
  T* c;
  const T *x, *aux, *prior;
  float alpha;
};

template <Act A, bool slope, class T>
__device__ T finish(T x, T aux, T prior, float alpha) {
  const float v = slope ? get(x) * activate<float>(A, get(aux)).dy : activate<float>(A, get(x)).y;
  return put<T>(fmaf(alpha, v, get(prior)));
}

template <Act A, bool slope, class T>
__global__ void epilogue_kernel(Operands<T> o, int64_t n) {
  using V = Vector<T>;
  const int64_t i = (int64_t(blockIdx.x) * threads + threadIdx.x) * V::size;
  if (i + V::size <= n) {
    const V x = *reinterpret_cast<const V*>(o.x + i);
    V aux{}, prior{}, c;
    if (slope) aux = *reinterpret_cast<const V*>(o.aux + i);
    if (o.prior) prior = *reinterpret_cast<const V*>(o.prior + i);
#pragma unroll
    for (int j = 0; j < V::size; ++j)
      c.x[j] = finish<A, slope>(x.x[j], aux.x[j], prior.x[j], o.alpha);
    *reinterpret_cast<V*>(o.c + i) = c;
    return;
  }
  for (int64_t j = i; j < n; ++j)
    o.c[j] =
        finish<A, slope>(o.x[j], slope ? o.aux[j] : T(0.f), o.prior ? o.prior[j] : T(0.f), o.alpha);
}

template <Act A, class T>
void launch(CudaStream& s, const Operands<T>& o, int64_t n, bool slope) {
  const int64_t per_block = int64_t(threads) * Vector<T>::size;
  const unsigned blocks = unsigned((n + per_block - 1) / per_block);
  if (slope)
    epilogue_kernel<A, true><<<blocks, threads, 0, s.handle>>>(o, n);
  else
    epilogue_kernel<A, false><<<blocks, threads, 0, s.handle>>>(o, n);
  check_launch("gemm_epilogue");
}

template <class T>
void by_act(CudaStream& s, Tensor c, Tensor x, Tensor aux, Tensor prior, float alpha, Act act,
            bool slope) {
  const Operands<T> o{c.as<T>(), x.as<T>(), aux.as<T>(), prior.as<T>(), alpha};
  const int64_t n = c.numel();
  switch (act) {
    case Act::gelu_tanh:
      return launch<Act::gelu_tanh>(s, o, n, slope);
    case Act::gelu_erf:
      return launch<Act::gelu_erf>(s, o, n, slope);
    case Act::relu2:
      return launch<Act::relu2>(s, o, n, slope);
    default:  // a GLU is never an epilogue
      return launch<Act::none>(s, o, n, slope);
  }
}

}  // namespace

void gemm_epilogue(CudaStream& s, Tensor c, Tensor x, Tensor aux, Tensor prior, float alpha,
                   Act act, bool slope) {
  switch (c.dtype) {
    case DType::f32:
      return by_act<float>(s, c, x, aux, prior, alpha, act, slope);
    case DType::bf16:
      return by_act<__nv_bfloat16>(s, c, x, aux, prior, alpha, act, slope);
    case DType::f16:
      return by_act<__half>(s, c, x, aux, prior, alpha, act, slope);
    default:
      refuse_dtype("gemm", c.dtype);
  }
}

}  // namespace hearth::cuda
