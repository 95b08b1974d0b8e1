// Gradients of the norm and rotation of one head, and the sums for the gains, which the kernels of
// qk_norm_rope_bwd share.
#pragma once

#include "cuda/elementwise/qk.cuh"

namespace hearth::cuda {

// A call. dx may be null if the result is only needed in fp8.
template <class T>
struct QkBwd {
  T* dx;
  float* parts;  // (blocks or warps, 2, D): of q's gain, of k's; null if neither is needed
  const T *dy, *x;
  const float* stat;
  const int32_t* positions;
  const float* rope;
  const T *q_gain, *k_gain;  // may be null
  QkShape q;
};

// Packs of 8 bytes: with its sums, a thread has no registers for more.
template <class T>
constexpr int qk_bwd_pack = wide<T> / 2;

// The inputs of a thread for one head.
template <class T, int N>
struct QkBwdHead {
  Pack<T, N> dy_a = {}, dy_b = {}, x_a = {}, x_b = {};
  float inverse = 0;  // 1 / rms; 0 where there is no head

  QkBwdHead() = default;
  __device__ QkBwdHead(const QkBwd<T>& a, int64_t token, int h, Columns at, bool normed) {
    const int64_t offset = token * a.q.token + int64_t(h) * a.q.head_dim;
    dy_a = load<N>(a.dy + offset + at.a), dy_b = load<N>(a.dy + offset + at.b);
    if (!normed || h >= a.q.normed()) return;
    x_a = load<N>(a.x + offset + at.a), x_b = load<N>(a.x + offset + at.b);
    inverse = a.stat[token * a.q.normed() + h];
  }

  // The gradient of this thread's elements. dgain receives its share of the gain's gradient. The
  // gain is 1 unless `scaled`. All lanes of a warp call this.
  template <bool interleaved, bool normed>
  __device__ __forceinline__ void gradient(float (&d)[2 * N], float (&dgain)[2 * N], int h,
                                           const QkShape& q, const Angles<N>& turn, bool scaled,
                                           const Pack<T, N>& gain_a, const Pack<T, N>& gain_b,
                                           int lanes) const {
    const float sign = q.reverse ? -1.0f : 1.0f;
    const bool live = h < q.normed(), turns = live && q.rotary;  // v's gradient is unchanged
    unpack_pair(d, dy_a, dy_b);
    if (q.norm != QkNorm::after_rope && turns) rotate<N, interleaved>(d, turn, -sign);
    if constexpr (normed) {
      const bool after = q.norm == QkNorm::after_rope;
      float n[2 * N], total = 0;  // n becomes the normalised head
      unpack_pair(n, x_a, x_b);
      if (after && turns) rotate<N, interleaved>(n, turn, sign);
#pragma unroll
      for (int k = 0; k < 2 * N; ++k) {
        n[k] *= inverse;
        dgain[k] = fmaf(d[k], n[k], dgain[k]);
        if (scaled && live) d[k] *= k < N ? get(gain_a, k % N) : get(gain_b, k % N);
        total = fmaf(d[k], n[k], total);
      }
      const float mean = team_sum(total, lanes) / float(q.head_dim);
      if (live) {
#pragma unroll
        for (int k = 0; k < 2 * N; ++k) d[k] = (d[k] - n[k] * mean) * inverse;
        if (after && turns) rotate<N, interleaved>(d, turn, -sign);
      }
    }
  }
};

// Adds the sums of all teams of a block into part (2, D): over the warp, then warp by warp. `sums`
// is shared memory (threads / 32, 2, D).
template <int N, int threads>
__device__ void put_gain_sums(float* part, float* sums, const float (&of_q)[2 * N],
                              const float (&of_k)[2 * N], Columns at, int lanes, int head_dim) {
  const int lane = int(threadIdx.x) & (lanes - 1), warp = int(threadIdx.x) / 32;
  float* mine = sums + warp * 2 * head_dim;
#pragma unroll
  for (int k = 0; k < 2 * N; ++k) {
    float dq = of_q[k], dk = of_k[k];
    for (int offset = lanes; offset < 32; offset *= 2) {
      dq += __shfl_xor_sync(~0u, dq, offset);
      dk += __shfl_xor_sync(~0u, dk, offset);
    }
    const int column = k < N ? at.a + k : at.b + k - N;
    if (int(threadIdx.x) % 32 < lanes && lane * 2 * N < head_dim) {
      mine[column] = dq;
      mine[head_dim + column] = dk;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * head_dim; i += threads) {
    float total = 0;
    for (int w = 0; w < threads / 32; ++w) total += sums[w * 2 * head_dim + i];
    part[i] = total;
  }
}

// qk_norm_rope_bwd_fp8.cu: the same with the result rounded to fp8. The number of its blocks, each
// of which writes one of the parts; 0: such a call is not supported.
int64_t qk_norm_rope_bwd_fp8_blocks(const CudaStream&, const QkShape&, const Fp8Output&);
void qk_norm_rope_bwd_fp8(CudaStream&, const QkBwd<__nv_bfloat16>&, const Fp8Output&,
                          bool interleaved);

}  // namespace hearth::cuda
