// Sums over the rows of a matrix and over all elements. Memory bound: the input is read once. The
// split into parts depends only on the shape and the GPU, and parts are added in a fixed order.
#include "cuda/device/reduce.h"

#include <algorithm>

#include "cuda/device/device.cuh"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

// Where column sums go: n columns to each output.
struct Outputs {
  SumOutput to[3];
  int64_t n;
};

// A block sums 32 columns; each of its 32 warps adds up every 32nd part.
__global__ void __launch_bounds__(1024)
    sum_parts(Outputs out, const float* parts, int64_t count, int64_t stride, int64_t columns) {
  __shared__ float shared[32][33];
  const int lane = threadIdx.x % 32, share = threadIdx.x / 32;
  const int64_t column = int64_t(blockIdx.x) * 32 + lane;
  float total = 0;
  if (column < columns)
#pragma unroll 16
    for (int64_t p = share; p < count; p += 32) total += parts[p * stride + column];
  shared[share][lane] = total;
  __syncthreads();
  const float sum = warp_sum(shared[lane][share]);
  const int64_t at = int64_t(blockIdx.x) * 32 + share;
  if (lane != 0 || at >= columns) return;
  const SumOutput to = out.to[at / out.n];
  if (!to.out) return;
  float& place = to.out[at % out.n];
  place = to.add ? place + to.scale * sum : to.scale * sum;
}

constexpr int sum_lanes = 32, sum_rows = 8;

// A block sums one part of the rows over 32 packs of columns; each of its eight warps takes every
// eighth row.
template <class T, int N>
__global__ void __launch_bounds__(256)
    column_parts(float* parts, const T* x, int64_t rows, int64_t width) {
  __shared__ float shared[sum_rows][sum_lanes * N];
  const int lane = threadIdx.x % sum_lanes, warp = threadIdx.x / sum_lanes;
  const int64_t first = int64_t(blockIdx.x) * sum_lanes * N, column = first + lane * N;
  const int64_t begin = rows * blockIdx.y / gridDim.y, end = rows * (blockIdx.y + 1) / gridDim.y;
  float total[N] = {};
  if (column < width) {
    constexpr int deep = 8;
    int64_t row = begin + warp;
    for (; row + (deep - 1) * sum_rows < end; row += deep * sum_rows) {
      Pack<T, N> in[deep];
#pragma unroll
      for (int d = 0; d < deep; ++d) in[d] = load<N>(x + (row + d * sum_rows) * width + column);
#pragma unroll
      for (int d = 0; d < deep; ++d)
#pragma unroll
        for (int k = 0; k < N; ++k) total[k] += get(in[d], k);
    }
    for (; row < end; row += sum_rows) {
      const Pack<T, N> in = load<N>(x + row * width + column);
#pragma unroll
      for (int k = 0; k < N; ++k) total[k] += get(in, k);
    }
  }
#pragma unroll
  for (int k = 0; k < N; ++k) shared[warp][lane * N + k] = total[k];
  __syncthreads();
  for (int i = threadIdx.x; i < sum_lanes * N && first + i < width; i += blockDim.x) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < sum_rows; ++w) sum += shared[w][i];
    parts[blockIdx.y * width + first + i] = sum;
  }
}

// A thread sums four packs at a time in fp32; those sums are added in fp64.
template <class T, int N>
__global__ void __launch_bounds__(256) square_parts(double* parts, const T* x, int64_t n) {
  __shared__ double shared[32];
  constexpr int deep = 4;
  const int64_t step = int64_t(gridDim.x) * blockDim.x * N;
  int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  double total = 0;
  for (; i + (deep - 1) * step + N <= n; i += deep * step) {
    Pack<T, N> in[deep];
#pragma unroll
    for (int d = 0; d < deep; ++d) in[d] = load<N>(x + i + d * step);
    float part = 0;
#pragma unroll
    for (int d = 0; d < deep; ++d)
#pragma unroll
      for (int k = 0; k < N; ++k) part = fmaf(get(in[d], k), get(in[d], k), part);
    total += double(part);
  }
  for (; i < n; i += step)
    for (int64_t j = i; j < n && j < i + N; ++j) {
      const float v = get(load<1>(x + j), 0);
      total += double(v * v);
    }
  total = block_sum(total, shared);
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

__global__ void __launch_bounds__(1024) sum_doubles(float* out, const double* parts, int count) {
  __shared__ double shared[32];
  double total = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) total += parts[i];
  total = block_sum(total, shared);
  if (threadIdx.x == 0) *out = float(total);
}

}  // namespace

void add_parts(CudaStream& s, float* out, const float* parts, int64_t count, int64_t stride,
               int64_t n, float scale, bool add) {
  if (n == 0) return;
  sum_parts<<<unsigned(ceil_div(n, 32)), 1024, 0, s.handle>>>({{{out, scale, add}}, n}, parts,
                                                              count, stride, n);
  check_launch("add_parts");
}

void add_parts(CudaStream& s, std::initializer_list<SumOutput> outputs, const float* parts,
               int64_t count, int64_t n) {
  if (n == 0) return;
  Outputs out{{}, n};
  std::copy(outputs.begin(), outputs.end(), out.to);
  const int64_t columns = int64_t(outputs.size()) * n;
  sum_parts<<<unsigned(ceil_div(columns, 32)), 1024, 0, s.handle>>>(out, parts, count, columns,
                                                                    columns);
  check_launch("add_parts");
}

void column_sum(Stream& stream, const ColumnSumArgs& args) {
  expect_dtypes("column_sum", DType::f32, args.out);
  CudaStream& s = on(stream);
  const int64_t width = args.out.numel(), rows = width ? args.x.numel() / width : 0;
  if (width == 0) return;
  by_dtype("column_sum", args.x, [&]<class T>(T*) {
    by_width<T>(packs_fit(width, args.x), [&]<int N>(Number<N>) {
      const int64_t across = ceil_div(width, sum_lanes * N);
      // Enough parts to fill the GPU, none shorter than 64 rows.
      const int64_t fill = ceil_div(int64_t(s.card.processors) * 8, across);
      const int64_t count = std::clamp<int64_t>(rows / 64, 1, std::min<int64_t>(fill, 65535));
      auto* parts = static_cast<float*>(s.scratch(count * width * 4));
      column_parts<T, N><<<dim3(unsigned(across), unsigned(count)), 256, 0, s.handle>>>(
          parts, as<T>(args.x), rows, width);
      check_launch("column_sum");
      add_parts(s, as<float>(args.out), parts, count, width, width, args.alpha, args.add);
    });
  });
}

void sum_squares(Stream& stream, const SumSquaresArgs& args) {
  expect_dtypes("sum_squares", DType::f32, args.out);
  CudaStream& s = on(stream);
  const int64_t n = args.x.numel();
  by_dtype("sum_squares", args.x, [&]<class T>(T*) {
    by_width<T>(packs_fit(8, args.x), [&]<int N>(Number<N>) {
      const int64_t need = ceil_div(n, 256 * N);
      const int blocks = int(std::clamp<int64_t>(need, 1, int64_t(s.card.processors) * 8));
      auto* parts = static_cast<double*>(s.scratch(blocks * 8));
      square_parts<T, N><<<blocks, 256, 0, s.handle>>>(parts, as<T>(args.x), n);
      check_launch("sum_squares");
      sum_doubles<<<1, 1024, 0, s.handle>>>(as<float>(args.out), parts, blocks);
      check_launch("sum_squares");
    });
  });
}

}  // namespace hearth::cuda
