// Layer norm and RMS norm over rows, with an optional residual addition first. Memory bound: a row
// stays in the registers of one warp (up to 256 packs) or one block, so a row of C two-byte
// elements moves 4C bytes, or 8C with the addition.
#include "cuda/device/dependent_launch.cuh"
#include "cuda/device/device.cuh"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

template <class T>
struct Args {
  T *y, *sum;
  float* stat;
  const T *x, *r, *gain, *bias;  // all but x may be null
  int64_t rows;
  int width;
  float eps;
  bool layer;
};

// The threads that share a row: a warp, or the whole block.
template <bool block>
struct Team {
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

template <class T, int N>
__device__ __forceinline__ void put_normed(const Args<T>& a, T* y, const Pack<T, N>& x, int column,
                                           float mean, float inverse) {
  float out[N];
#pragma unroll
  for (int k = 0; k < N; ++k) out[k] = (get(x, k) - mean) * inverse;
  if (a.gain) {
    const Pack<T, N> gain = load<N>(a.gain + column);
#pragma unroll
    for (int k = 0; k < N; ++k) out[k] *= get(gain, k);
  }
  if (a.bias) {
    const Pack<T, N> bias = load<N>(a.bias + column);
#pragma unroll
    for (int k = 0; k < N; ++k) out[k] += get(bias, k);
  }
  store_rounded(y + column, out);
}

template <class T>
__device__ __forceinline__ void put_stat(const Args<T>& a, int64_t row, float mean, float inverse) {
  if (a.stat) reinterpret_cast<float2*>(a.stat)[row] = make_float2(mean, inverse);
}

// Each thread holds P packs of a row.
template <class T, int N, int P, bool block>
__global__ void norm_rows(Args<T> a) {
  __shared__ float shared[64];
  const Team<block> team{shared};
  const int64_t row = team.row();
  let_next_start();
  wait_for_previous();
  if (row >= a.rows) return;
  const int64_t at = row * a.width;
  const auto column = [&](int p) { return (p * team.size() + team.rank()) * N; };
  Pack<T, N> v[P];
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (column(p) < a.width) v[p] = load<N>(a.x + at + column(p));
  if (a.r) {
    Pack<T, N> r[P];
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (column(p) < a.width) r[p] = load<N>(a.r + at + column(p));
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (column(p) < a.width) {
        v[p] = joined(v[p], r[p]);
        store(a.sum + at + column(p), v[p]);
      }
  }
  float mean = 0, squares = 0;
  if (a.layer) {
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (column(p) < a.width) mean += summed(v[p]);
    mean = team.sum(mean, 0) / float(a.width);
  }
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (column(p) < a.width) squares += squared(v[p], mean);
  const float inverse = rsqrtf(team.sum(squares, 1) / float(a.width) + a.eps);
  if (team.rank() == 0) put_stat(a, row, mean, inverse);
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (column(p) < a.width) put_normed(a, a.y + at, v[p], column(p), mean, inverse);
}

// Rows too long for registers are read again. sum may alias x or r, and y may alias x: a thread
// reads only what it wrote itself, and y is written last.
template <class T, int N>
__global__ void long_rows(Args<T> a) {
  __shared__ float shared[64];
  const int64_t at = blockIdx.x * int64_t(a.width);
  const int first = int(threadIdx.x) * N, step = int(blockDim.x) * N;
  const T* x = a.x + at;
  if (a.r) {
    for (int i = first; i < a.width; i += step)
      store(a.sum + at + i, joined(load<N>(a.x + at + i), load<N>(a.r + at + i)));
    x = a.sum + at;
  }
  float mean = 0, squares = 0;
  if (a.layer) {
    for (int i = first; i < a.width; i += step) mean += summed(load<N>(x + i));
    mean = block_sum(mean, shared) / float(a.width);
  }
  for (int i = first; i < a.width; i += step) squares += squared(load<N>(x + i), mean);
  const float inverse = 1 / sqrtf(block_sum(squares, shared + 32) / float(a.width) + a.eps);
  if (threadIdx.x == 0) put_stat(a, blockIdx.x, mean, inverse);
  for (int i = first; i < a.width; i += step)
    put_normed(a, a.y + at, load<N>(x + i), i, mean, inverse);
}

template <class T, int N, int P>
void launch_warps(CudaStream& s, const Args<T>& a) {
  constexpr int warps = 4;
  launch_dependent(s, norm_rows<T, N, P, false>, unsigned(ceil_div(a.rows, warps)), warps * 32, a);
}

template <class T, int N>
void launch(CudaStream& s, const Args<T>& a) {
  const int64_t packs = ceil_div(a.width, N);
  if (packs > 4096) {
    long_rows<T, N><<<unsigned(a.rows), 512, 0, s.handle>>>(a);
  } else if (packs > (N == 1 ? 128 : 256)) {
    const auto threads = unsigned(round_up(ceil_div(packs, 4), 32));
    launch_dependent(s, norm_rows<T, N, 4, true>, unsigned(a.rows), threads, a);
  } else if constexpr (N == 1) {
    launch_warps<T, N, 4>(s, a);
  } else {
    switch (ceil_div(packs, 32)) {
      case 1:
        launch_warps<T, N, 1>(s, a);
        break;
      case 2:
        launch_warps<T, N, 2>(s, a);
        break;
      case 3:
        launch_warps<T, N, 3>(s, a);
        break;
      case 4:
        launch_warps<T, N, 4>(s, a);
        break;
      case 5:
      case 6:
        launch_warps<T, N, 6>(s, a);
        break;
      default:
        launch_warps<T, N, 8>(s, a);
    }
  }
  check_launch("norm");
}

}  // namespace

void norm(Stream& stream, const NormArgs& args) {
  const NormSpec& spec = args.spec;
  expect_dtypes("norm", args.x.dtype, args.y, args.residual, args.gain, args.bias);
  if (args.residual) expect_dtypes("norm", args.x.dtype, args.sum);
  expect_dtypes("norm stat", DType::f32, args.stat);
  if (args.x.numel() == 0) return;
  by_dtype("norm", args.x, [&]<class T>(T*) {
    const Args<T> a{.y = as<T>(args.y),
                    .sum = as<T>(args.sum),
                    .stat = as<float>(args.stat),
                    .x = as<T>(args.x),
                    .r = as<T>(args.residual),
                    .gain = as<T>(args.gain),
                    .bias = as<T>(args.bias),
                    .rows = args.x.rows(),
                    .width = int(args.x.cols()),
                    .eps = spec.eps,
                    .layer = spec.kind == Norm::layer};
    by_width<T>(
        packs_fit(args.x.cols(), args.y, args.sum, args.x, args.residual, args.gain, args.bias),
        [&]<int N>(Number<N>) { launch<T, N>(on(stream), a); });
  });
}

}  // namespace hearth::cuda
