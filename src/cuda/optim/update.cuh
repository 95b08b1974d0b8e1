// What the kernels of the weight update share: the weights of a range, and the functions that a
// rule (core/update_rules.h) needs.
#pragma once

#include "cuda/device/device.cuh"

namespace hearth::cuda {

struct FloatMath {
  __host__ __device__ __forceinline__ static float sqrt(float x) { return sqrtf(x); }
};

template <int N, class M>
__device__ __forceinline__ void load_floats(float (&x)[N], const M* p) {
  const Pack<M, N> pack = load<N>(p);
#pragma unroll
  for (int k = 0; k < N; ++k) x[k] = get(pack, k);
}

// Factors on the rows or columns of a matrix, for a range of its elements.
struct GradientFactors {
  const float* data = nullptr;  // null: there are none
  uint32_t C = 1;               // columns of the matrix
  bool columns = false;
  uint32_t first = 0;  // the matrix's element where the range begins

  // Multiplies elements i .. i + N - 1 of the range, which are in one row.
  template <int N>
  __device__ __forceinline__ void multiply(float (&x)[N], int64_t i) const {
    if (!data) return;
    const uint32_t at = first + uint32_t(i), row = at / C;
    float factors[N];
    if (columns) {
      load_floats(factors, data + (at - row * C));
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) factors[k] = data[row];
    }
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] *= factors[k];
  }
};

// G: the type of the gradient. In descent the gradient is the result of Muon's products and has
// their type.
template <class T, class G = float>
struct Weights {
  T* w;
  float* master;  // may be null: w is the master
  const G* grad;
  GradientFactors factors = {};  // descent only
  int64_t first = 0;             // the number of the first element: UpdateArgs::first
};

// The update of a range whose state is 8-bit codes (update_coded.cu).
void update_coded(CudaStream&, const UpdateArgs&);

// Part blockIdx.x of row_parts of n elements, in whole packs.
struct PartOfRow {
  int64_t begin, end;
};
template <int N>
__device__ __forceinline__ PartOfRow part_of_row(int64_t n) {
  const int64_t length = round_up(ceil_div(n, int64_t(row_parts)), N);
  const int64_t begin = min(n, int64_t(blockIdx.x) * length);
  return {begin, min(n, begin + length)};
}

// squares (n, row_parts) f32: sums of squares of the n matrices of x in parts (muon.cu).
void sum_squares_in_parts(CudaStream&, const Tensor& squares, const Tensor& x);

}  // namespace hearth::cuda
