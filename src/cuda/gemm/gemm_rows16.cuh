// The kernel for products of few rows (decoding): c (M, N) = act(a (M, K) wᵀ + bias), M up to 16.
// Bound by reading w once. For the tensor cores w is the left operand and a the right one. The
// order of a sum over K is free, so each thread reads contiguous bytes of w where the instruction
// expects scattered pairs. A class per weight format does this: FewPlain, and those of
// gemm_rows16_quantised.cuh. The warps of a block share rows of w and split K; their sums are added
// in order.
//
// The rows of a can be normalised. The norm of a row x is ((x - mean) / deviation) gain + shift, so
// its product with w is (x · (gain w) - mean Σ gain w) / deviation + Σ shift w. The gain is
// multiplied into w, and Σ gain w comes from one more row of a, which has ones; the sums of x and
// x² run beside the product. So nothing waits for the statistics of a row.
#pragma once

#include "cuda/device/dependent_launch.cuh"
#include "cuda/device/device.cuh"
#include "cuda/device/eight_halves.cuh"
#include "cuda/elementwise/act.cuh"
#include "cuda/gemm/gemm_rows16.h"

namespace hearth::cuda {

namespace few {
constexpr int tile = 16;     // rows of w that the tensor cores multiply at once
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

// Two 16-bit floats in a word.
template <class T>
using Two = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;

template <class T>
__device__ __forceinline__ uint32_t times(uint32_t x, uint32_t y, T) {
  const Two<T> d =
      __hmul2(*reinterpret_cast<const Two<T>*>(&x), *reinterpret_cast<const Two<T>*>(&y));
  return *reinterpret_cast<const uint32_t*>(&d);
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

// Plain weights: 16 contiguous bytes of each of a lane's rows, which are two, or one if a block has
// half a tile.
template <class T, int Rows = few::tile>
struct FewPlain {
  using Element = T;
  static constexpr bool packed = false;
  static constexpr int parts = 1, rows = Rows, halves = Rows / 8;
  static constexpr int ahead = few::ahead * 2 / halves;
  uint4 w[ahead][halves];

  // The row within the block's tile that a lane's group holds in either half of the MMA tile.
  __device__ static int row(int group, int half) { return group + 8 * half; }
  __device__ static int column(int) { return 8 * (int(threadIdx.x) % 4); }

  // Loads `ahead` stretches: the one at k, then one every Step columns.
  template <int Step, class Args>
  __device__ __forceinline__ void load(const Args& p, int k) {
    const int first = int(blockIdx.x) * Rows + int(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int i = 0; i < ahead; ++i)
#pragma unroll
      for (int half = 0; half < halves; ++half)
        w[i][half] = few_eight(static_cast<const T*>(p.w), first + 8 * half, p.N,
                               k + i * Step + column(0), p.K);
  }
  // Multiplies the gain into the stretch.
  __device__ __forceinline__ void fold(int i, const uint4& gain) {
#pragma unroll
    for (int half = 0; half < halves; ++half) {
      uint4& x = w[i][half];
      x = {times(x.x, gain.x, T()), times(x.y, gain.y, T()), times(x.z, gain.z, T()),
           times(x.w, gain.w, T())};
    }
  }
  template <int Columns, bool Scaled>
  __device__ __forceinline__ void multiply_by(float (&sum)[Columns][4], int i,
                                              const uint4 (&x)[Columns], const uint4&) const {
    const uint4 &w0 = w[i][0], w1 = halves == 2 ? w[i][halves - 1] : uint4{0, 0, 0, 0};
    const uint32_t left[4] = {w0.x, w1.x, w0.y, w1.y}, right[4] = {w0.z, w1.z, w0.w, w1.w};
#pragma unroll
    for (int c = 0; c < Columns; ++c) {
      multiply(sum[c], left, x[c].x, x[c].y, T());
      multiply(sum[c], right, x[c].z, x[c].w, T());
    }
  }
};

// --- the norm ---

// Whether products of T normalise rows: norm_gemm_rows16_takes().
template <class T>
constexpr bool few_norms = std::is_same_v<T, __nv_bfloat16>;

// The rows that a block multiplies, in Columns groups of eight: `of_a` of a and, if they are
// normalised, one of ones. The sums of the shift follow.
template <int Columns, bool Normed>
struct FewRows {
  static constexpr int of_a = Columns * 8 - Normed, ones = of_a, shift = Columns * 8;
  static constexpr int all = Columns * 8 + Normed;
};

template <class T>
__device__ __forceinline__ uint4 eight_ones() {
  const uint32_t one = pack(1.0f, 1.0f, T());
  return {one, one, one, one};
}

// Sum of the elements of a row, and of their squares.
struct FewSums {
  float sum = 0, squares = 0;

  template <class T>
  __device__ __forceinline__ void add(const uint4& x) {
    float f[8];
    eight_floats<T>(f, x);
#pragma unroll
    for (int e = 0; e < 8; ++e) sum += f[e], squares = fmaf(f[e], f[e], squares);
  }
  __device__ __forceinline__ void add(float2 other) { sum += other.x, squares += other.y; }
  // Adds those of the lanes up to Last / 2 away.
  template <int Last>
  __device__ __forceinline__ void join() {
#pragma unroll
    for (int step = 1; step < Last; step *= 2) {
      sum += __shfl_xor_sync(~0u, sum, step);
      squares += __shfl_xor_sync(~0u, squares, step);
    }
  }
  // The product of the normalised row. `ones`: Σ gain w; `shift`: Σ shift w.
  template <class Args>
  __device__ __forceinline__ float normed(const Args& p, float x, float ones, float shift) const {
    const float mean = p.layer ? sum / float(p.K) : 0;
    const float variance = fmaxf(squares / float(p.K) - mean * mean, 0);
    return fmaf(fmaf(-mean, ones, x), rsqrtf(variance + p.eps), shift);
  }
};

// The sums of a warp: of its part of K, for the rows of w of a tile. Stretches add to two sums in
// turn, so that a multiplication does not wait for the one before it.
template <class W, int Columns, bool Normed>
struct FewPart {
  using Rows = FewRows<Columns, Normed>;
  float sum[2][Columns][4] = {}, shifted[1][4] = {};

  // Multiplies the gain into stretch i of w, after the product with the shift.
  __device__ __forceinline__ void fold(W& w, int i, bool shifts, const uint4& gain,
                                       const uint4& shift) {
    if (shifts) {
      const bool own = threadIdx.x % 32 < 4;  // one row of eight
      const uint4 x[1] = {own ? shift : uint4{0, 0, 0, 0}};
      w.template multiply_by<1, false>(shifted, i, x, gain);
    }
    w.fold(i, gain);
  }
  __device__ __forceinline__ void put(float (*to)[few::tile]) const {
    const int lane = int(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = W::row(lane / 4, i / 2);
#pragma unroll
      for (int c = 0; c < Columns; ++c)
        to[8 * c + 2 * (lane % 4) + i % 2][row] = sum[0][c][i] + sum[1][c][i];
      if (Normed && i % 2 == 0 && lane % 4 == 0) to[Rows::shift][row] = shifted[0][i];
    }
  }
};

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
// groups of 8 rows per block; blockIdx.y selects further rows of a.
template <class W, class Out, int Columns, int Warps, bool Normed>
__global__ void __launch_bounds__(32 * Warps, Warps == 8 ? 2 : 1)
    few_rows(FewArgs<typename W::Element, Out> p) {
  using T = typename W::Element;
  using Rows = FewRows<Columns, Normed>;
  using few::stretch, few::tile;
  constexpr int ahead = W::ahead, step = Warps * stretch;
  static_assert(Columns * 8 * tile <= 32 * Warps, "a thread writes at most one element");
  __shared__ float sums[Warps][Rows::all][tile];
  __shared__ float2 of_rows[Normed ? Warps : 1][Columns * 8];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int above = Rows::of_a * int(blockIdx.y);
  const int own = int(threadIdx.x) / W::rows, column = int(threadIdx.x) % W::rows;
  const int n = int(blockIdx.x) * W::rows + column;
  const bool writes = own < Rows::of_a && above + own < p.M && n < p.N;
  const int64_t to = int64_t(above + own) * p.N + n;
  W weights;
  uint4 gain[Normed ? ahead : 1];
  FewPart<W, Columns, Normed> part;
  FewSums of_row[Columns];
  const auto load = [&](int k) {
    weights.template load<step>(p, k);
    if constexpr (Normed) {
      uint4 shift[ahead];
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
        gain[i] = p.gain ? few_own<W>(p.gain, 0, 1, k + i * step, p.K) : eight_ones<T>();
        shift[i] = few_own<W>(p.shift, 0, p.shift ? 1 : 0, k + i * step, p.K);
      }
#pragma unroll
      for (int i = 0; i < ahead; ++i) part.fold(weights, i, p.shift, gain[i], shift[i]);
    }
  };
  let_next_start();
  if (!p.weight) wait_for_previous();
  const float bias = writes && p.bias ? float(p.bias[n]) : 0;
  const float scale = W::packed && writes ? p.scales[n] : 1;
  load(warp * stretch);
  wait_for_previous();
  const bool wide = W::packed && p.wide;
  float prior = 0;
  if (writes && p.prior)
    prior = wide ? reinterpret_cast<const float*>(p.prior)[to] : float(p.prior[to]);
  for (int k = warp * stretch; k < p.K;) {
    uint4 x[ahead][Columns];
#pragma unroll
    for (int i = 0; i < ahead; ++i)
#pragma unroll
      for (int c = 0; c < Columns; ++c) {
        const int row = lane / 4 + 8 * c;
        x[i][c] = few_own<W>(p.a, row < Rows::of_a ? above + row : p.M, p.M, k + i * step, p.K);
      }
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      if constexpr (Normed) {
#pragma unroll
        for (int c = 0; c < Columns; ++c) of_row[c].template add<T>(x[i][c]);
        if (lane / 4 == 7) x[i][Columns - 1] = eight_ones<T>();
      }
      if (k + i * step < p.K)
        weights.template multiply_by<Columns, Normed>(part.sum[i % 2], i, x[i],
                                                      gain[Normed ? i : 0]);
    }
    k += ahead * step;
    if (k < p.K) load(k);
  }
  part.put(sums[warp]);
  if constexpr (Normed)
#pragma unroll
    for (int c = 0; c < Columns; ++c) {
      of_row[c].template join<4>();
      if (lane % 4 == 0) of_rows[warp][8 * c + lane / 4] = {of_row[c].sum, of_row[c].squares};
    }
  __syncthreads();
  if (!writes) return;
  const auto total = [&](int row) {
    float x = 0;
#pragma unroll
    for (int w = 0; w < Warps; ++w) x += sums[w][row][column];
    return x;
  };
  float x = total(own);
  if constexpr (Normed) {
    FewSums all;
#pragma unroll
    for (int w = 0; w < Warps; ++w) all.add(of_rows[w][own]);
    x = all.normed(p, x, p.layer ? total(Rows::ones) : 0, p.shift ? total(Rows::shift) : 0);
  }
  if (W::packed) x *= scale;
  x += bias;
  if (wide)
    few_finish<T, float>(p, reinterpret_cast<float*>(p.c) + to, nullptr, x, prior);
  else
    few_finish<T, Out>(p, p.c + to, p.aux ? p.aux + to : nullptr, x, prior);
}

// Warps of a block, which read w in one go if 8 can.
template <class W>
constexpr int few_warps(int64_t K) {
  return K > 8 * W::ahead * few::stretch ? 16 : 8;
}

// Whether all blocks of a product run at once. If not, gemm_stream is faster.
template <class W>
bool few_fill(const Card& card, int64_t N, int64_t K) {
  return ceil_div(N, W::rows) <= card.processors * (16 / few_warps<W>(K));
}

template <class W, bool Normed, class Out>
void few_launch(CudaStream& s, const FewArgs<typename W::Element, Out>& args) {
  const auto launch = [&]<int Columns, int Warps>(Number<Columns>, Number<Warps>) {
    const dim3 blocks(unsigned(ceil_div(args.N, W::rows)),
                      unsigned(ceil_div(args.M, FewRows<Columns, Normed>::of_a)));
    launch_dependent(s, few_rows<W, Out, Columns, Warps, Normed>, blocks, 32 * Warps, args);
  };
  const auto columns = [&](auto warps) {
    args.M <= FewRows<1, Normed>::of_a ? launch(Number<1>{}, warps) : launch(Number<2>{}, warps);
  };
  few_warps<W>(args.K) == 16 ? columns(Number<16>{}) : columns(Number<8>{});
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
