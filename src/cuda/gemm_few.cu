// Products of few rows (decoding): c (M, N) = act(a (M, K) wᵀ + bias), M up to 16. Bound by reading
// w once. The tensor cores see w as their left operand and a as the right one; the order of a sum
// over K is free, so each thread takes 16 contiguous bytes of a row where the instruction would
// have scattered pairs. Warps of a block share rows of w and split K; their sums are added in
// order.
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
};

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

template <class T>
__device__ __forceinline__ float few_act(Act act, float x) {
  if (act == Act::gelu_tanh) return act_value_for<Act::gelu_tanh, T>(x);
  if (act == Act::gelu_erf) return act_value_for<Act::gelu_erf, T>(x);
  return act_value_for<Act::relu2, T>(x);  // a GLU is no act of a product
}

// Columns: rows of a by 8.
template <class T, class Out, int Columns, int Warps>
__global__ void __launch_bounds__(32 * Warps) few_rows(FewArgs<T, Out> p) {
  __shared__ float sums[Warps][Columns * 8][tile];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int group = lane / 4, first = int(blockIdx.x) * tile, at = 8 * (lane % 4);
  float sum[Columns][4] = {};
  bool waited = false;
  for (int k = warp * stretch; k < p.K; k += ahead * Warps * stretch) {
    uint4 w[ahead][2];
#pragma unroll
    for (int i = 0; i < ahead; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        w[i][half] =
            few_eight(p.w, first + group + 8 * half, p.N, k + i * Warps * stretch + at, p.K);
    if (!waited) wait_for_previous(), let_next_start(), waited = true;  // w is nobody's output
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      uint4 x[Columns];
#pragma unroll
      for (int c = 0; c < Columns; ++c)
        x[c] = few_eight(p.a, group + 8 * c, p.M, k + i * Warps * stretch + at, p.K);
      few_multiply<Columns, T>(sum, w[i][0], w[i][1], x);
    }
  }
  if (!waited) wait_for_previous(), let_next_start();
#pragma unroll
  for (int c = 0; c < Columns; ++c)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sums[warp][8 * c + 2 * (lane % 4) + i % 2][group + 8 * (i / 2)] = sum[c][i];
  __syncthreads();
  for (int i = int(threadIdx.x); i < Columns * 8 * tile; i += 32 * Warps) {
    const int m = i / tile, n = first + i % tile;
    if (m >= p.M || n >= p.N) continue;
    float x = 0;
#pragma unroll
    for (int k = 0; k < Warps; ++k) x += sums[k][m][i % tile];
    if (p.bias) x += float(p.bias[n]);
    const int64_t to = int64_t(m) * p.N + n;
    if (p.act != Act::none) {
      const Out argument = Out(x);  // rounded, as everywhere: it can be made again to the bit
      if (p.aux) p.aux[to] = argument;
      x = few_act<T>(p.act, float(argument));
    }
    p.c[to] = Out(p.prior ? fmaf(p.alpha, x, float(p.prior[to])) : p.alpha * x);
  }
}

template <class T, class Out>
void few_launch(CudaStream& s, const FewArgs<T, Out>& args) {
  const auto launch = [&]<int Columns, int Warps>(Number<Columns>, Number<Warps>) {
    launch_early(s, few_rows<T, Out, Columns, Warps>, unsigned(ceil_div(args.N, tile)), 32 * Warps,
                 args);
  };
  const auto columns = [&](auto warps) {
    args.M <= 8 ? launch(Number<1>{}, warps) : launch(Number<2>{}, warps);
  };
  args.K >= 2048 ? columns(Number<16>{}) : columns(Number<8>{});
}

}  // namespace

bool gemm_few_takes(const Tensor& c, const Tensor& a, const Tensor& b, const GemmSpec& spec) {
  const bool sixteen = a.dtype == DType::bf16 || a.dtype == DType::f16;
  return sixteen && !spec.ta && spec.tb && !spec.act_slope && a.rows() <= 16 && is_float(c.dtype) &&
         packs_fit(a.cols(), a, b) && c.cols() <= INT32_MAX - tile;
}

void gemm_few(CudaStream& s, Tensor c, Tensor aux, Tensor a, Tensor b, Tensor bias, Tensor prior,
              const GemmSpec& spec) {
  by_dtype("gemm", a, [&]<class T>(T*) {
    if constexpr (sizeof(T) == 2) {
      const auto fill = [&]<class Out>(Out*) {
        few_launch<T, Out>(s, {.a = as<T>(a),
                               .w = as<T>(b),
                               .bias = as<T>(bias),
                               .prior = as<Out>(prior),
                               .c = as<Out>(c),
                               .aux = as<Out>(aux),
                               .M = int(a.rows()),
                               .N = int(c.cols()),
                               .K = int(a.cols()),
                               .alpha = spec.alpha,
                               .act = spec.act});
      };
      c.dtype == DType::f32 ? fill(static_cast<float*>(nullptr)) : fill(static_cast<T*>(nullptr));
    }
  });
  check_launch("gemm");
}

}  // namespace hearth::cuda
