// Layer norm and RMS norm over rows, with an optional residual addition first. Memory bound: a row
// stays in the registers of one warp (up to 256 packs) or one block, so a row of C two-byte
// elements moves 4C bytes, or 8C with the addition.
#include "cuda/device/dependent_launch.cuh"
#include "cuda/elementwise/norm_rows.cuh"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

// Each thread holds P packs of a row.
template <class T, int N, int P, bool block>
__global__ void norm_rows(NormRows<T> a) {
  __shared__ float shared[64];
  const NormTeam<block> team{shared};
  const int64_t index = team.row();
  let_next_start();
  wait_for_previous();
  if (index >= a.rows) return;
  NormRow<T, N, P, block> row(a, team, index, true);
  row.measure();
  if (team.rank() == 0) put_stat(a, index, row.mean, row.inverse);
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (row.column(p) < a.width) {
      float out[N];
      row.result(out, p);
      store_rounded(a.y + row.at + row.column(p), out);
    }
}

// Rows too long for registers are read again. sum may alias x or r, and y may alias x: a thread
// reads only what it wrote itself, and y is written last.
template <class T, int N>
__global__ void long_rows(NormRows<T> a) {
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
  for (int i = first; i < a.width; i += step) {
    float out[N];
    normed(out, a, load<N>(x + i), i, mean, inverse);
    store_rounded(a.y + at + i, out);
  }
}

template <class T, int N, int P>
void launch_warps(CudaStream& s, const NormRows<T>& a) {
  constexpr int warps = 4;
  launch_dependent(s, norm_rows<T, N, P, false>, unsigned(ceil_div(a.rows, warps)), warps * 32, a);
}

template <class T, int N>
void launch(CudaStream& s, const NormRows<T>& a) {
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
  expect_dtypes("norm", args.x.dtype, args.y, args.residual, args.gain, args.bias);
  if (args.residual) expect_dtypes("norm", args.x.dtype, args.sum);
  expect_dtypes("norm stat", DType::f32, args.stat);
  if (args.x.numel() == 0) return;
  if (args.fp8) return norm_fp8(on(stream), args);
  by_dtype("norm", args.x, [&]<class T>(T*) {
    const NormRows<T> a = norm_rows_of<T>(args);
    by_width<T>(
        packs_fit(args.x.cols(), args.y, args.sum, args.x, args.residual, args.gain, args.bias),
        [&]<int N>(Number<N>) { launch<T, N>(on(stream), a); });
  });
}

}  // namespace hearth::cuda
