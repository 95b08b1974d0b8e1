// Products of few rows (decoding): c (M, N) = act(a (M, K) wᵀ + bias), M up to 16. Bound by reading
// w once. The tensor cores see w as their left operand and a as the right one; the order of a sum
// over K is free, so each thread takes 16 contiguous bytes of a row where the instruction would
// have scattered pairs. Warps of a block share rows of w and split K; their sums are added in
// order. The rows of a may be normed on their way in: a block reads every element of them once, and
// has them all in its registers when it does.
#include "cuda/act.cuh"
#include "cuda/device.cuh"
#include "cuda/early.cuh"
#include "cuda/gemm_few.h"
#include "cuda/mma.cuh"

namespace hearth::cuda {
namespace {

constexpr int tile = 16;     // rows of w in a block
constexpr int stretch = 32;  // of K: what a warp multiplies at a time
constexpr int ahead = 4;     // stretches under way at once

template <class T, class Out>
struct FewArgs {
  const T *a, *w, *bias;
  const Out* prior;
  Out *c, *aux;
  int M, N, K;
  float alpha;
  Act act;
  bool weight;                                // no kernel ahead writes w
  const T *gain = nullptr, *shift = nullptr;  // of the norm; may be null
  float eps = 0;
  bool layer = false;
};

template <class T>
__device__ __forceinline__ float act_of_product(Act act, float x) {
  if (act == Act::gelu_tanh) return act_value_for<Act::gelu_tanh, T>(x);
  if (act == Act::gelu_erf) return act_value_for<Act::gelu_erf, T>(x);
  return act_value_for<Act::relu2, T>(x);  // a GLU is no act of a product
}

// Eight elements of a row from column k on; zeros outside.
template <class T>
__device__ __forceinline__ uint4 few_eight(const T* m, int row, int rows, int k, int K) {
  if (row >= rows || k >= K) return {0, 0, 0, 0};
  return *reinterpret_cast<const uint4*>(m + int64_t(row) * K + k);
}

template <int Columns, class T>
__device__ __forceinline__ void few_multiply(float (&sum)[Columns][4], const uint4& w0,
                                             const uint4& w1, const uint4 (&x)[Columns]) {
  const uint32_t left[4] = {w0.x, w1.x, w0.y, w1.y}, right[4] = {w0.z, w1.z, w0.w, w1.w};
#pragma unroll
  for (int c = 0; c < Columns; ++c) {
    multiply(sum[c], left, x[c].x, x[c].y, T());
    multiply(sum[c], right, x[c].z, x[c].w, T());
  }
}

// Eight elements as floats.
template <class T>
__device__ __forceinline__ void eight_floats(float (&f)[8], const uint4& v) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = unpack(words[i], T());
    f[2 * i] = two.x, f[2 * i + 1] = two.y;
  }
}

// The normed eight, rounded as the norm's own kernel rounds them.
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

// What the warps of a block find out together about the rows they norm.
template <int Warps>
struct FewNorm {
  float sums[2][Warps][16];
  uint4 gain[Warps * ahead * 4], shift[Warps * ahead * 4];
};

// The sum over whole rows of what the lanes have of them: each warp has some columns, the lanes of
// a group of four have the same rows, group + 8 c. In a fixed order.
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

// Mean (0 without) and 1 / deviation of the rows group + 8 c, whose elements x the block holds.
template <class T, class Out, int Columns, int Warps>
__device__ __forceinline__ void few_stats(const FewArgs<T, Out>& p,
                                          const uint4 (&x)[ahead][Columns], int k,
                                          FewNorm<Warps>& norm, float (&mean)[Columns],
                                          float (&inverse)[Columns]) {
#pragma unroll
  for (int c = 0; c < Columns; ++c) mean[c] = inverse[c] = 0;
  float f[8];
  if (p.layer) {
#pragma unroll
    for (int c = 0; c < Columns; ++c)
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
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
    for (int i = 0; i < ahead; ++i) {
      if (k + i * Warps * stretch >= p.K) continue;  // zeros that are not of the row
      eight_floats<T>(f, x[i][c]);
#pragma unroll
      for (int e = 0; e < 8; ++e) inverse[c] = fmaf(f[e] - mean[c], f[e] - mean[c], inverse[c]);
    }
  few_row_sums<Columns, Warps>(inverse, norm.sums[1]);
#pragma unroll
  for (int c = 0; c < Columns; ++c) inverse[c] = rsqrtf(inverse[c] / float(p.K) + p.eps);
}

// What a warp reads of the weights ahead of its multiplications.
template <class T, class Out, int Warps>
struct FewAhead {
  uint4 w[ahead][2];

  __device__ __forceinline__ void load(const FewArgs<T, Out>& p, int first, int k) {
#pragma unroll
    for (int i = 0; i < ahead; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        w[i][half] = few_eight(p.w, first + 8 * half, p.N, k + i * Warps * stretch, p.K);
  }
};

// Columns: rows of a by 8.
template <class T, class Out, int Columns, int Warps, bool Normed>
__global__ void __launch_bounds__(32 * Warps, Normed&& Warps == 8 ? 2 : 1)
    few_rows(FewArgs<T, Out> p) {
  static_assert(Columns * 8 * tile <= 32 * Warps, "a thread writes at most one element");
  __shared__ float sums[Warps][Columns * 8][tile];
  __shared__ std::conditional_t<Normed, FewNorm<Warps>, char> norm;
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int group = lane / 4, first = int(blockIdx.x) * tile, at = 8 * (lane % 4);
  const int m = int(threadIdx.x) / tile, n = first + int(threadIdx.x) % tile;
  const bool writes = m < p.M && n < p.N;
  const int64_t to = int64_t(m) * p.N + n;
  float sum[Columns][4] = {};
  FewAhead<T, Out, Warps> weights;
  let_next_start();
  if (!p.weight) wait_for_previous();
  weights.load(p, first + group, warp * stretch + at);
  if constexpr (Normed)
    for (int i = int(threadIdx.x); 8 * i < p.K; i += 32 * Warps) {
      norm.gain[i] = few_eight(p.gain, 0, p.gain ? 1 : 0, 8 * i, p.K);
      norm.shift[i] = few_eight(p.shift, 0, p.shift ? 1 : 0, 8 * i, p.K);
    }
  const float bias = writes && p.bias ? float(p.bias[n]) : 0;
  wait_for_previous();
  const float prior = writes && p.prior ? float(p.prior[to]) : 0;
  // One turn does for all of K where the rows are normed; warps beyond its end share in the sums.
  for (int k = warp * stretch; k < p.K || (Normed && k == warp * stretch);) {
    uint4 x[ahead][Columns];
#pragma unroll
    for (int i = 0; i < ahead; ++i)
#pragma unroll
      for (int c = 0; c < Columns; ++c)
        x[i][c] = few_eight(p.a, group + 8 * c, p.M, k + i * Warps * stretch + at, p.K);
    if constexpr (Normed) {
      float mean[Columns], inverse[Columns];
      few_stats<T, Out, Columns, Warps>(p, x, k + at, norm, mean, inverse);
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
        const int pack = min(k + i * Warps * stretch + at, p.K - 8) / 8;
#pragma unroll
        for (int c = 0; c < Columns; ++c)
          x[i][c] = eight_normed<T>(x[i][c], norm.gain[pack], norm.shift[pack], p.gain, p.shift,
                                    mean[c], inverse[c]);
      }
    }
#pragma unroll
    for (int i = 0; i < ahead; ++i)
      few_multiply<Columns, T>(sum, weights.w[i][0], weights.w[i][1], x[i]);
    k += ahead * Warps * stretch;
    if (k < p.K) weights.load(p, first + group, k + at);
  }
#pragma unroll
  for (int c = 0; c < Columns; ++c)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sums[warp][8 * c + 2 * (lane % 4) + i % 2][group + 8 * (i / 2)] = sum[c][i];
  __syncthreads();
  if (!writes) return;
  float x = 0;
#pragma unroll
  for (int k = 0; k < Warps; ++k) x += sums[k][m][int(threadIdx.x) % tile];
  x += bias;
  if (p.act != Act::none) {
    const Out argument = Out(x);  // rounded, as everywhere: it can be made again to the bit
    if (p.aux) p.aux[to] = argument;
    x = act_of_product<T>(p.act, float(argument));
  }
  p.c[to] = Out(p.prior ? fmaf(p.alpha, x, prior) : p.alpha * x);
}

template <bool Normed, class T, class Out>
void few_launch(CudaStream& s, const FewArgs<T, Out>& args) {
  const auto launch = [&]<int Columns, int Warps>(Number<Columns>, Number<Warps>) {
    launch_early(s, few_rows<T, Out, Columns, Warps, Normed>, unsigned(ceil_div(args.N, tile)),
                 32 * Warps, args);
  };
  const auto columns = [&](auto warps) {
    args.M <= 8 ? launch(Number<1>{}, warps) : launch(Number<2>{}, warps);
  };
  if constexpr (Normed)
    args.K > 8 * ahead* stretch ? columns(Number<16>{}) : columns(Number<8>{});
  else
    args.K >= 2048 ? columns(Number<16>{}) : columns(Number<8>{});
}

template <class T, class Out>
FewArgs<T, Out> few_args(Tensor c, Tensor aux, Tensor a, Tensor b, Tensor bias, Tensor prior,
                         const GemmSpec& spec) {
  return {.a = as<T>(a),
          .w = as<T>(b),
          .bias = as<T>(bias),
          .prior = as<Out>(prior),
          .c = as<Out>(c),
          .aux = as<Out>(aux),
          .M = int(a.rows()),
          .N = int(c.cols()),
          .K = int(a.cols()),
          .alpha = spec.alpha,
          .act = spec.act,
          .weight = spec.weight};
}

// Calls f with pointers of the types of a and c.
template <class F>
void few_types(const Tensor& a, const Tensor& c, F f) {
  by_dtype("gemm", a, [&]<class T>(T* t) {
    if constexpr (sizeof(T) == 2)
      c.dtype == DType::f32 ? f(t, static_cast<float*>(nullptr)) : f(t, t);
  });
}

}  // namespace

bool gemm_few_takes(const Tensor& c, const Tensor& a, const Tensor& b, const GemmSpec& spec) {
  const bool sixteen = a.dtype == DType::bf16 || a.dtype == DType::f16;
  return sixteen && !spec.ta && spec.tb && !spec.act_slope && a.rows() <= 16 && is_float(c.dtype) &&
         packs_fit(a.cols(), a, b) && c.cols() <= INT32_MAX - tile;
}

void gemm_few(CudaStream& s, Tensor c, Tensor aux, Tensor a, Tensor b, Tensor bias, Tensor prior,
              const GemmSpec& spec) {
  few_types(a, c, [&]<class T, class Out>(T*, Out*) {
    few_launch<false, T, Out>(s, few_args<T, Out>(c, aux, a, b, bias, prior, spec));
  });
  check_launch("gemm");
}

// Every block norms the rows again: more blocks than the card holds at once had better not.
bool norm_gemm_few_takes(int64_t rows, int64_t width, int64_t columns, DType dtype) {
  return (dtype == DType::bf16 || dtype == DType::f16) && rows <= 16 && width % 8 == 0 &&
         width <= 16 * ahead * stretch && columns <= 8192;
}

void norm_gemm_few(CudaStream& s, Tensor c, Tensor x, Tensor gain, Tensor shift, Tensor b,
                   Tensor bias, Tensor prior, const NormSpec& norm, const GemmSpec& spec) {
  few_types(x, c, [&]<class T, class Out>(T*, Out*) {
    FewArgs<T, Out> args = few_args<T, Out>(c, {}, x, b, bias, prior, spec);
    args.gain = as<T>(gain), args.shift = as<T>(shift);
    args.eps = norm.eps, args.layer = norm.kind == Norm::layer;
    few_launch<true, T, Out>(s, args);
  });
  check_launch("norm_gemm");
}

}  // namespace hearth::cuda
