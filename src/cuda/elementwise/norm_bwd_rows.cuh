// Rows of the gradient of a norm, shared by the kernels that write the result as it is and in fp8.
#pragma once

#include "cuda/device/device.cuh"

namespace hearth::cuda {

// The arguments of the gradient of a norm.
template <class T>
struct NormBwdRows {
  T* dx;                           // may be null in norm_bwd_fp8.cu
  float* parts;                    // (blocks, vectors, C); may be null
  int vectors;                     // 2: dgain, dbias; 3: and the column sums of dx
  const T *dy, *x, *gain, *prior;  // gain and prior may be null
  const float* stat;
  int64_t rows;
  int width;
  bool layer;
};

// With n = (x - mean) * inverse and e = dy * gain: dx = inverse * (e - mean(e) - n * mean(e * n)).
struct NormBwdStat {
  float mean, inverse, mean_e, mean_en;
};

// e and n of an element. Every operation here is rounded on its own, or explicitly fused, so that
// all kernels that inline it have the same bits.
struct NormBwdElement {
  float d, n, e;
};
__device__ __forceinline__ NormBwdElement element_of(float dy, float x, float gain, bool has_gain,
                                                     float mean, float inverse) {
  return {dy, __fmul_rn(x - mean, inverse), has_gain ? __fmul_rn(dy, gain) : dy};
}

template <class T, int N>
__device__ __forceinline__ void dx_of(float (&out)[N], const NormBwdRows<T>& a,
                                      const Pack<T, N>& dy, const Pack<T, N>& x,
                                      const Pack<T, N>& gain, const Pack<T, N>& prior,
                                      const NormBwdStat& row) {
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const NormBwdElement at =
        element_of(get(dy, k), get(x, k), get(gain, k), a.gain, row.mean, row.inverse);
    const float centred = __fmaf_rn(-at.n, row.mean_en, __fadd_rn(at.e, -row.mean_e));
    out[k] =
        a.prior ? __fmaf_rn(centred, row.inverse, get(prior, k)) : __fmul_rn(centred, row.inverse);
  }
}

// The threads that share a row: a warp or the whole block.
template <int N, bool block>
struct NormBwdTeam {
  __device__ static int size() { return block ? int(blockDim.x) : 32; }
  __device__ static int rank() { return int(threadIdx.x) % size(); }
  __device__ static int column(int p) { return (p * size() + rank()) * N; }
};

// Double-buffered rows of each team, one in use and one loading. A thread's packs of dy, x and
// prior are in shared memory of its own, so no barrier is needed. With N = 1, elements are read
// from global memory, twice.
template <class Team, class T, int N, int P>
struct NormBwdRing {
  uint4* memory;
  const NormBwdRows<T>& a;
  int stage = 0;
  int64_t at = 0;  // where the current row begins

  __device__ uint4* slot(int turn, int which, int p) const {
    return memory + ((turn * 3 + which) * P + p) * blockDim.x + threadIdx.x;
  }
  __device__ void fetch(int64_t row, int turn) const {
    if constexpr (N > 1) {
      const int64_t from = row * a.width;
#pragma unroll
      for (int p = 0; p < P; ++p)
        if (row < a.rows && Team::column(p) < a.width) {
          copy_async(slot(turn, 0, p), a.dy + from + Team::column(p));
          copy_async(slot(turn, 1, p), a.x + from + Team::column(p));
          if (a.prior) copy_async(slot(turn, 2, p), a.prior + from + Team::column(p));
        }
      commit_copies();
    }
  }
  __device__ void wait(int64_t row) {
    at = row * a.width;
    if constexpr (N > 1) wait_for_copies<1>();
  }
  __device__ Pack<T, N> get(int which, const T* global, int p) const {
    if constexpr (N > 1) return load<N>(reinterpret_cast<const T*>(slot(stage, which, p)));
    return load<N>(global + at + Team::column(p));
  }
  __device__ Pack<T, N> dy(int p) const { return get(0, a.dy, p); }
  __device__ Pack<T, N> x(int p) const { return get(1, a.x, p); }
  __device__ Pack<T, N> prior(int p) const { return a.prior ? get(2, a.prior, p) : Pack<T, N>{}; }
};

// Adds a row's packs to the sums of e and e * n, and with `sums` to the gradients of gain and bias.
template <bool sums, class T, int N>
__device__ __forceinline__ void add_pack(float2& e_sums, float (&dgain)[N], float (&dbias)[N],
                                         const Pack<T, N>& dy, const Pack<T, N>& x,
                                         const Pack<T, N>& gain, bool has_gain, float2 stat) {
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const NormBwdElement at =
        element_of(get(dy, k), get(x, k), get(gain, k), has_gain, stat.x, stat.y);
    e_sums.x = __fadd_rn(e_sums.x, at.e);
    e_sums.y = fmaf(at.e, at.n, e_sums.y);
    if constexpr (sums) {
      dgain[k] = fmaf(at.d, at.n, dgain[k]);
      dbias[k] += at.d;
    }
  }
}

// Adds the sums of a block's warps, held as `of[p][k]`, into part (C). Each warp has a slot of
// shared memory, written without bank conflicts.
template <int N, int P>
__device__ __forceinline__ void put_sums(float* part, float* slots, const float (&of)[P][N],
                                         int width) {
  constexpr int slot = P * N * 32;
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
#pragma unroll
  for (int p = 0; p < P; ++p)
#pragma unroll
    for (int k = 0; k < N; ++k) slots[warp * slot + (p * N + k) * 32 + lane] = of[p][k];
  __syncthreads();
  for (int c = threadIdx.x; c < width; c += blockDim.x) {
    const int at = (c / (32 * N) * N + c % N) * 32 + c / N % 32;
    float total = 0;
    for (int w = 0; w < int(blockDim.x) / 32; ++w) total += slots[w * slot + at];
    part[c] = total;
  }
}

// norm_bwd_fp8.cu: the gradient with an Fp8Output. Returns the number of blocks, each of which has
// a part (2, C) of the gradients of gain and bias; 0: this size is better rounded separately.
int64_t norm_bwd_fp8_blocks(const CudaStream&, int64_t rows, int64_t width);
void norm_bwd_fp8(CudaStream&, const NormBwdRows<__nv_bfloat16>&, const Fp8Output&);

}  // namespace hearth::cuda
