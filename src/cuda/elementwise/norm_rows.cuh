// A row of a norm in the registers of one warp or one block, shared by the kernels that write the
// result as it is and in fp8.
#pragma once

#include "cuda/device/device.cuh"

namespace hearth::cuda {

// The arguments of a norm.
template <class T>
struct NormRows {
  T *y, *sum;  // y may be null in norm_fp8.cu, sum without r
  float* stat;
  const T *x, *r, *gain, *bias;  // all but x may be null
  int64_t rows;
  int width;
  float eps;
  bool layer;
};

// The threads that share a row: a warp, or the whole block.
template <bool block>
struct NormTeam {
  float* shared;  // 64 floats
  __device__ int size() const { return block ? int(blockDim.x) : 32; }
  __device__ int rank() const { return block ? int(threadIdx.x) : int(threadIdx.x) % 32; }
  __device__ int64_t row() const {
    if constexpr (block) return blockIdx.x;
    return int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  }
  __device__ float sum(float x, int turn) const {
    if constexpr (block) return block_sum(x, shared + 32 * turn);
    return warp_sum(x);
  }
};

template <class T, int N>
__device__ __forceinline__ Pack<T, N> joined(const Pack<T, N>& a, const Pack<T, N>& b) {
  float total[N];
#pragma unroll
  for (int k = 0; k < N; ++k) total[k] = get(a, k) + get(b, k);
  Pack<T, N> r;
  round_to(r, total);
  return r;
}

template <class T, int N>
__device__ __forceinline__ float summed(const Pack<T, N>& x) {
  float total = 0;
#pragma unroll
  for (int k = 0; k < N; ++k) total += get(x, k);
  return total;
}

template <class T, int N>
__device__ __forceinline__ float squared(const Pack<T, N>& x, float mean) {
  float total = 0;
#pragma unroll
  for (int k = 0; k < N; ++k) total = fmaf(get(x, k) - mean, get(x, k) - mean, total);
  return total;
}

// Rounds after every operation, so that all kernels that inline it have the same bits.
template <class T, int N>
__device__ __forceinline__ void normed(float (&out)[N], const NormRows<T>& a, const Pack<T, N>& x,
                                       int column, float mean, float inverse) {
#pragma unroll
  for (int k = 0; k < N; ++k) out[k] = __fmul_rn(get(x, k) - mean, inverse);
  if (a.gain) {
    const Pack<T, N> gain = load<N>(a.gain + column);
#pragma unroll
    for (int k = 0; k < N; ++k) out[k] = __fmul_rn(out[k], get(gain, k));
  }
  if (a.bias) {
    const Pack<T, N> bias = load<N>(a.bias + column);
#pragma unroll
    for (int k = 0; k < N; ++k) out[k] = __fadd_rn(out[k], get(bias, k));
  }
}

template <class T>
__device__ __forceinline__ void put_stat(const NormRows<T>& a, int64_t row, float mean,
                                         float inverse) {
  if (a.stat) reinterpret_cast<float2*>(a.stat)[row] = make_float2(mean, inverse);
}

// A row in registers: each thread of the team holds P packs.
template <class T, int N, int P, bool block>
struct NormRow {
  const NormRows<T>& a;
  NormTeam<block> team;
  int64_t at;  // where the row begins
  Pack<T, N> v[P];
  float mean = 0, inverse = 0;

  __device__ int column(int p) const { return (p * team.size() + team.rank()) * N; }

  // Adds the residual; `stores`: writes the sum.
  __device__ __forceinline__ NormRow(const NormRows<T>& a, const NormTeam<block>& team, int64_t row,
                                     bool stores)
      : a(a), team(team), at(row * a.width) {
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (column(p) < a.width) v[p] = load<N>(a.x + at + column(p));
    if (!a.r) return;
    Pack<T, N> r[P];
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (column(p) < a.width) r[p] = load<N>(a.r + at + column(p));
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (column(p) < a.width) {
        v[p] = joined(v[p], r[p]);
        if (stores) store(a.sum + at + column(p), v[p]);
      }
  }

  __device__ __forceinline__ void measure() {
    if (a.layer) {
#pragma unroll
      for (int p = 0; p < P; ++p)
        if (column(p) < a.width) mean += summed(v[p]);
      mean = team.sum(mean, 0) / float(a.width);
    }
    float squares = 0;
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (column(p) < a.width) squares += squared(v[p], mean);
    inverse = rsqrtf(team.sum(squares, 1) / float(a.width) + a.eps);
  }

  __device__ __forceinline__ void result(float (&out)[N], int p) const {
    normed(out, a, v[p], column(p), mean, inverse);
  }
};

template <class T>
NormRows<T> norm_rows_of(const NormArgs& args) {
  return {.y = as<T>(args.y),
          .sum = as<T>(args.sum),
          .stat = as<float>(args.stat),
          .x = as<T>(args.x),
          .r = as<T>(args.residual),
          .gain = as<T>(args.gain),
          .bias = as<T>(args.bias),
          .rows = args.x.rows(),
          .width = int(args.x.cols()),
          .eps = args.spec.eps,
          .layer = args.spec.kind == Norm::layer};
}

// norm_fp8.cu: for calls with an Fp8Output.
void norm_fp8(CudaStream&, const NormArgs&);

}  // namespace hearth::cuda
