// The kernel for products of few rows (decoding): c (M, N) = act(a (M, K) wᵀ + bias), M up to 16.
// Bound by reading w once. For the tensor cores w is the left operand and a the right one. The
// order of a sum over K is free, so each thread reads contiguous bytes of w where the instruction
// expects scattered pairs. A class per weight format does this: FewPlain, and those of
// gemm_rows16_quantised.cuh. The warps of a block share rows of w and split K; their sums are added
// in order. The rows of a can be normalised as they are read: a block reads each element once and
// holds whole rows in its registers.
#pragma once

#include "cuda/device/dependent_launch.cuh"
#include "cuda/device/device.cuh"
#include "cuda/device/eight_halves.cuh"
#include "cuda/elementwise/act.cuh"
#include "cuda/gemm/gemm_rows16.h"

namespace hearth::cuda {

namespace few {
constexpr int tile = 16;     // rows of w per block
constexpr int stretch = 32;  // k that a warp multiplies at a time
constexpr int ahead = 4;     // stretches in flight
}  // namespace few

template <class T, class Out>
struct FewArgs {
  const T* a;
  const void* w;  // if packed, the first panel
  const T* bias;
  const Out* prior;
  Out *c, *aux;
  int M, N, K;
  float alpha;
  Act act;
  bool weight;                                // no earlier kernel writes w: it need not wait
  const T *gain = nullptr, *shift = nullptr;  // of the norm; may be null
  float eps = 0;
  bool layer = false;
  const float* scales = nullptr;          // of the rows of packed w
  int panel_bytes = 0, factor_bytes = 0;  // if w is packed: see QuantLayout
  bool wide = false;                      // if w is packed: c and prior are f32, whatever Out is
};

template <class T>
__device__ __forceinline__ float act_of_product(Act act, float x) {
  if (act == Act::gelu_tanh) return act_value_for<Act::gelu_tanh, T>(x);
  if (act == Act::gelu_erf) return act_value_for<Act::gelu_erf, T>(x);
  return act_value_for<Act::relu2, T>(x);  // products take no GLU
}

// Eight elements of a row from column k on; zeros outside.
template <class T>
__device__ __forceinline__ uint4 few_eight(const T* m, int row, int rows, int k, int K) {
  if (row >= rows || k >= K) return {0, 0, 0, 0};
  return *reinterpret_cast<const uint4*>(m + int64_t(row) * K + k);
}

template <class T>
__device__ __forceinline__ uint2 few_four(const T* m, int row, int rows, int k, int K) {
  if (row >= rows || k >= K) return {0, 0};
  return *reinterpret_cast<const uint2*>(m + int64_t(row) * K + k);
}

// The eight elements of a stretch that a lane multiplies, in the column order of W: eight from
// column(0) on or, with two parts, four from column(0) and four from column(1) on.
template <class W, class T>
__device__ __forceinline__ uint4 few_own(const T* m, int row, int rows, int k, int K) {
  if constexpr (W::parts == 1) {
    return few_eight(m, row, rows, k + W::column(0), K);
  } else {
    const uint2 low = few_four(m, row, rows, k + W::column(0), K);
    const uint2 high = few_four(m, row, rows, k + W::column(1), K);
    return {low.x, low.y, high.x, high.y};
  }
}

// The same from a row in shared memory; arbitrary elements beyond K.
template <class W>
__device__ __forceinline__ uint4 few_own_shared(const uint4* row, int k, int K) {
  if constexpr (W::parts == 1) {
    return row[min(k + W::column(0), K - 8) / 8];
  } else {
    const uint2* fours = reinterpret_cast<const uint2*>(row);
    const uint2 low = fours[min(k + W::column(0), K - 4) / 4];
    const uint2 high = fours[min(k + W::column(1), K - 4) / 4];
    return {low.x, low.y, high.x, high.y};
  }
}

// Plain weights: 16 contiguous bytes of each of a lane's two rows.
template <class T>
struct FewPlain {
  using Element = T;
  static constexpr bool packed = false;
  static constexpr int parts = 1;
  uint4 w[few::ahead][2];

  // The row within the block's tile that a lane's group holds in either half of the MMA tile.
  __device__ static int row(int group, int half) { return group + 8 * half; }
  __device__ static int column(int) { return 8 * (int(threadIdx.x) % 4); }

  // Loads `ahead` stretches: the one at k, then one every Step columns.
  template <int Step, class Args>
  __device__ __forceinline__ void load(const Args& p, int k) {
    const int first = int(blockIdx.x) * few::tile + int(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int i = 0; i < few::ahead; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        w[i][half] = few_eight(static_cast<const T*>(p.w), first + 8 * half, p.N,
                               k + i * Step + column(0), p.K);
  }
  template <int Columns>
  __device__ __forceinline__ void multiply_by(float (&sum)[Columns][4], int i,
                                              const uint4 (&x)[Columns]) const {
    const uint4 &w0 = w[i][0], &w1 = w[i][1];
    const uint32_t left[4] = {w0.x, w1.x, w0.y, w1.y}, right[4] = {w0.z, w1.z, w0.w, w1.w};
#pragma unroll
    for (int c = 0; c < Columns; ++c) {
      multiply(sum[c], left, x[c].x, x[c].y, T());
      multiply(sum[c], right, x[c].z, x[c].w, T());
    }
  }
};

// Eight normalised elements, rounded as the norm kernel rounds them.
template <class T>
__device__ __forceinline__ uint4 eight_normed(const uint4& x, const uint4& gain, const uint4& shift,
                                              bool gains, bool shifts, float mean, float inverse) {
  float v[8], g[8], b[8];
  eight_floats<T>(v, x), eight_floats<T>(g, gain), eight_floats<T>(b, shift);
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    v[k] = (v[k] - mean) * inverse;
    if (gains) v[k] *= g[k];
    if (shifts) v[k] += b[k];
  }
  return {pack(v[0], v[1], T()), pack(v[2], v[3], T()), pack(v[4], v[5], T()),
          pack(v[6], v[7], T())};
}

// Shared memory of a block that normalises its rows.
template <int Warps>
struct FewNorm {
  float sums[2][Warps][16];
  uint4 gain[Warps * few::ahead * 4], shift[Warps * few::ahead * 4];
};

// Sums over whole rows, in a fixed order. Each warp holds some columns; the lanes of a group of
// four hold the same rows, group + 8 c.
template <int Columns, int Warps>
__device__ __forceinline__ void few_row_sums(float (&x)[Columns], float (&parts)[Warps][16]) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
#pragma unroll
  for (int c = 0; c < Columns; ++c) {
    x[c] += __shfl_xor_sync(~0u, x[c], 1);
    x[c] += __shfl_xor_sync(~0u, x[c], 2);
    if (lane % 4 == 0) parts[warp][8 * c + lane / 4] = x[c];
  }
  __syncthreads();
#pragma unroll
  for (int c = 0; c < Columns; ++c) {
    x[c] = 0;
#pragma unroll
    for (int w = 0; w < Warps; ++w) x[c] += parts[w][8 * c + lane / 4];
  }
}

// Mean (0 for RMSNorm) and 1 / standard deviation of the rows group + 8 c. x holds their elements,
// spread over the block; those of this warp start with the stretch at k.
template <class W, class Out, int Columns, int Warps>
__device__ __forceinline__ void few_stats(const FewArgs<typename W::Element, Out>& p,
                                          const uint4 (&x)[few::ahead][Columns], int k,
                                          FewNorm<Warps>& norm, float (&mean)[Columns],
                                          float (&inverse)[Columns]) {
  using T = typename W::Element;
#pragma unroll
  for (int c = 0; c < Columns; ++c) mean[c] = inverse[c] = 0;
  float f[8];
  if (p.layer) {
#pragma unroll
    for (int c = 0; c < Columns; ++c)
#pragma unroll
      for (int i = 0; i < few::ahead; ++i) {
        eight_floats<T>(f, x[i][c]);
#pragma unroll
        for (int e = 0; e < 8; ++e) mean[c] += f[e];
      }
    few_row_sums<Columns, Warps>(mean, norm.sums[0]);
#pragma unroll
    for (int c = 0; c < Columns; ++c) mean[c] /= float(p.K);
  }
#pragma unroll
  for (int c = 0; c < Columns; ++c)
#pragma unroll
    for (int i = 0; i < few::ahead; ++i)
#pragma unroll
      for (int part = 0; part < W::parts; ++part) {
        // zero padding beyond the row
        if (k + i * Warps * few::stretch + W::column(part) >= p.K) continue;
        eight_floats<T>(f, x[i][c]);
        constexpr int each = 8 / W::parts;
#pragma unroll
        for (int e = part * each; e < (part + 1) * each; ++e)
          inverse[c] = fmaf(f[e] - mean[c], f[e] - mean[c], inverse[c]);
      }
  few_row_sums<Columns, Warps>(inverse, norm.sums[1]);
#pragma unroll
  for (int c = 0; c < Columns; ++c) inverse[c] = rsqrtf(inverse[c] / float(p.K) + p.eps);
}

// The epilogue of one sum; aux, if present, gets the argument of act.
template <class T, class Out, class Args>
__device__ __forceinline__ void few_finish(const Args& p, Out* c, Out* aux, float x, float prior) {
  if (p.act != Act::none) {
    const Out argument = Out(x);  // rounded as everywhere: recomputation gives the same bits
    if (aux) *aux = argument;
    x = act_of_product<T>(p.act, float(argument));
  }
  *c = Out(p.prior ? fmaf(p.alpha, x, prior) : p.alpha * x);
}

// W: the weights a warp loads ahead of its multiplications, and how it multiplies by them. Columns:
// groups of 8 rows of a per block; with packed weights blockIdx.y selects further rows.
template <class W, class Out, int Columns, int Warps, bool Normed>
__global__ void __launch_bounds__(32 * Warps, Normed&& Warps == 8 ? 2 : 1)
    few_rows(FewArgs<typename W::Element, Out> p) {
  using T = typename W::Element;
  using few::ahead, few::stretch, few::tile;
  static_assert(Columns * 8 * tile <= 32 * Warps, "a thread writes at most one element");
  __shared__ float sums[Warps][Columns * 8][tile];
  __shared__ std::conditional_t<Normed, FewNorm<Warps>, char> norm;
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int group = lane / 4, above = W::packed ? Columns * 8 * int(blockIdx.y) : 0;
  const int own = int(threadIdx.x) / tile, n = int(blockIdx.x) * tile + int(threadIdx.x) % tile;
  const bool writes = (!W::packed || own < Columns * 8) && above + own < p.M && n < p.N;
  const int64_t to = int64_t(above + own) * p.N + n;
  float sum[Columns][4] = {};
  W weights;
  let_next_start();
  if (!p.weight) wait_for_previous();
  weights.template load<Warps * stretch>(p, warp * stretch);
  if constexpr (Normed)
    for (int i = int(threadIdx.x); 8 * i < p.K; i += 32 * Warps) {
      norm.gain[i] = few_eight(p.gain, 0, p.gain ? 1 : 0, 8 * i, p.K);
      norm.shift[i] = few_eight(p.shift, 0, p.shift ? 1 : 0, 8 * i, p.K);
    }
  const float bias = writes && p.bias ? float(p.bias[n]) : 0;
  const float scale = W::packed && writes ? p.scales[n] : 1;
  wait_for_previous();
  const bool wide = W::packed && p.wide;
  float prior = 0;
  if (writes && p.prior)
    prior = wide ? reinterpret_cast<const float*>(p.prior)[to] : float(p.prior[to]);
  // With normalisation one iteration covers all of K; warps beyond K still join the row sums.
  for (int k = warp * stretch; k < p.K || (Normed && k == warp * stretch);) {
    uint4 x[ahead][Columns];
#pragma unroll
    for (int i = 0; i < ahead; ++i)
#pragma unroll
      for (int c = 0; c < Columns; ++c)
        x[i][c] = few_own<W>(p.a, above + group + 8 * c, p.M, k + i * Warps * stretch, p.K);
    if constexpr (Normed) {
      float mean[Columns], inverse[Columns];
      few_stats<W, Out, Columns, Warps>(p, x, k, norm, mean, inverse);
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
        const int at = k + i * Warps * stretch;
#pragma unroll
        for (int c = 0; c < Columns; ++c)
          x[i][c] = eight_normed<T>(x[i][c], few_own_shared<W>(norm.gain, at, p.K),
                                    few_own_shared<W>(norm.shift, at, p.K), p.gain, p.shift,
                                    mean[c], inverse[c]);
      }
    }
#pragma unroll
    for (int i = 0; i < ahead; ++i) weights.template multiply_by<Columns>(sum, i, x[i]);
    k += ahead * Warps * stretch;
    if (k < p.K) weights.template load<Warps * stretch>(p, k);
  }
#pragma unroll
  for (int c = 0; c < Columns; ++c)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sums[warp][8 * c + 2 * (lane % 4) + i % 2][W::row(group, i / 2)] = sum[c][i];
  __syncthreads();
  if (!writes) return;
  float x = 0;
#pragma unroll
  for (int k = 0; k < Warps; ++k) x += sums[k][own][int(threadIdx.x) % tile];
  if (W::packed) x *= scale;
  x += bias;
  if (wide)
    few_finish<T, float>(p, reinterpret_cast<float*>(p.c) + to, nullptr, x, prior);
  else
    few_finish<T, Out>(p, p.c + to, p.aux ? p.aux + to : nullptr, x, prior);
}

template <class W, bool Normed, class Out>
void few_launch(CudaStream& s, const FewArgs<typename W::Element, Out>& args) {
  const auto launch = [&]<int Columns, int Warps>(Number<Columns>, Number<Warps>) {
    const dim3 blocks(unsigned(ceil_div(args.N, few::tile)),
                      unsigned(1 + (args.M - 1) / (Columns * 8)));
    launch_dependent(s, few_rows<W, Out, Columns, Warps, Normed>, blocks, 32 * Warps, args);
  };
  const auto columns = [&](auto warps) {
    args.M <= 8 ? launch(Number<1>{}, warps) : launch(Number<2>{}, warps);
  };
  if constexpr (Normed)
    args.K > 8 * few::ahead* few::stretch ? columns(Number<16>{}) : columns(Number<8>{});
  else
    args.K >= 2048 ? columns(Number<16>{}) : columns(Number<8>{});
}

template <class T, class Out>
FewArgs<T, Out> few_args(const GemmArgs& args) {
  return {.a = as<T>(args.a),
          .w = args.b.data,
          .bias = as<T>(args.bias),
          .prior = as<Out>(args.prior),
          .c = as<Out>(args.c),
          .aux = as<Out>(args.aux),
          .M = int(args.a.rows()),
          .N = int(args.c.cols()),
          .K = int(args.a.cols()),
          .alpha = args.spec.alpha,
          .act = args.spec.act,
          .weight = args.spec.weight};
}

template <class T, class Out>
void few_norm(FewArgs<T, Out>& args, const FewNormed& n) {
  args.gain = as<T>(n.gain), args.shift = as<T>(n.shift);
  args.eps = n.norm.eps, args.layer = n.norm.kind == Norm::layer;
}

// Calls f with null pointers of the types of a and c.
template <class F>
void few_types(const Tensor& a, const Tensor& c, F f) {
  by_dtype("gemm", a, [&]<class T>(T* t) {
    if constexpr (sizeof(T) == 2)
      c.dtype == DType::f32 ? f(t, static_cast<float*>(nullptr)) : f(t, t);
  });
}

}  // namespace hearth::cuda
