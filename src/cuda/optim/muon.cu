// What Muon computes beside products and elementwise passes: matrices of norm 1 to start from, and
// NorMuon's factors per neuron, for all matrices of one shape at once. Memory bound: each reads the
// matrices once, and the first writes them. Sums have a fixed order; nothing is atomic.
#include <algorithm>

#include "cuda/kernels.h"
#include "cuda/optim/update.cuh"

namespace hearth::cuda {
namespace {

constexpr int threads = 256, warps = threads / 32;

// Block (p, m) adds the squares of part p of matrix m. With packs, N divides `size`.
template <int N, class T>
__global__ void __launch_bounds__(threads) square_parts(float* parts, const T* x, int64_t size) {
  __shared__ float shared[32];
  const auto [begin, end] = part_of_row<N>(size);
  x += int64_t(blockIdx.y) * size;
  float total = 0;
#pragma unroll 4
  for (int64_t i = begin + int64_t(threadIdx.x) * N; i < end; i += threads * N) {
    const Pack<T, N> in = load<N>(x + i);
#pragma unroll
    for (int k = 0; k < N; ++k) total = fmaf(get(in, k), get(in, k), total);
  }
  total = block_sum(total, shared);
  if (threadIdx.x == 0) parts[int64_t(blockIdx.y) * row_parts + blockIdx.x] = total;
}

// The blocks of grid.x share the elements of matrix blockIdx.y.
template <int N, class T>
__global__ void __launch_bounds__(threads)
    divide_by_norm(T* y, const T* x, const float* parts, int64_t size) {
  static_assert(row_parts == 32);  // one for each lane
  __shared__ float shared;
  if (threadIdx.x < 32) {
    const double total = warp_sum(double(parts[int64_t(blockIdx.y) * row_parts + threadIdx.x]));
    if (threadIdx.x == 0) shared = float(1 / (1.02 * sqrt(total) + 1e-6));
  }
  __syncthreads();
  const float factor = shared;
  const int64_t matrix = int64_t(blockIdx.y) * size;
  for (int64_t i = (int64_t(blockIdx.x) * threads + threadIdx.x) * N; i < size;
       i += int64_t(gridDim.x) * threads * N) {
    const Pack<T, N> in = load<N>(x + matrix + i);
    float out[N];
#pragma unroll
    for (int k = 0; k < N; ++k) out[k] = get(in, k) * factor;
    store_rounded(y + matrix + i, out);
  }
}

// A warp adds the squares of one row; `rows` counts those of all matrices.
template <int N, class T>
__global__ void __launch_bounds__(threads)
    row_squares(float* sums, const T* x, int64_t rows, int64_t C) {
  const int64_t row = int64_t(blockIdx.x) * warps + threadIdx.x / 32;
  if (row >= rows) return;
  float total = 0;
#pragma unroll 4
  for (int64_t c = int64_t(threadIdx.x % 32) * N; c < C; c += 32 * N) {
    const Pack<T, N> in = load<N>(x + row * C + c);
#pragma unroll
    for (int k = 0; k < N; ++k) total = fmaf(get(in, k), get(in, k), total);
  }
  total = warp_sum(total);
  if (threadIdx.x % 32 == 0) sums[row] = total;
}

constexpr int column_warps = 16;

// A block adds the squares of 32 N columns of matrix blockIdx.y; its warps take every 16th row, and
// their sums are added in order.
template <int N, class T>
__global__ void __launch_bounds__(32 * column_warps)
    column_squares(float* sums, const T* x, int64_t R, int64_t C) {
  __shared__ float shared[column_warps][32 * N];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t first = int64_t(blockIdx.x) * 32 * N, column = first + lane * N;
  float total[N] = {};
  if (column < C) {
    const T* const from = x + int64_t(blockIdx.y) * R * C + column;
#pragma unroll 4
    for (int64_t r = warp; r < R; r += column_warps) {
      const Pack<T, N> in = load<N>(from + r * C);
#pragma unroll
      for (int k = 0; k < N; ++k) total[k] = fmaf(get(in, k), get(in, k), total[k]);
    }
  }
#pragma unroll
  for (int k = 0; k < N; ++k) shared[warp][lane * N + k] = total[k];
  __syncthreads();
  for (int i = threadIdx.x; i < 32 * N && first + i < C; i += 32 * column_warps) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < column_warps; ++w) sum += shared[w][i];
    sums[int64_t(blockIdx.y) * C + first + i] = sum;
  }
}

// Where the moments of the matrices of one launch begin: a kernel's parameters hold at most 4 KiB.
constexpr int64_t most_matrices = 256;
struct MomentTable {
  int64_t begin[most_matrices];
};

// Turns the sums of squares of matrix blockIdx.x into factors; `width` elements enter each sum.
__global__ void __launch_bounds__(1024)
    factors_of_sums(float* sums, float* moments, const UpdateState* gate,
                    const __grid_constant__ MomentTable table, int64_t n, float width,
                    float beta2) {
  __shared__ double before_sums[32], after_sums[32];
  sums += int64_t(blockIdx.x) * n;
  float* const moment = moments + table.begin[blockIdx.x];
  const bool skip = gate->skip != 0;
  double before = 0, after = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    const float sum = sums[i];
    float running = moment[i];
    if (!skip) moment[i] = running = running + (sum / width - running) * (1 - beta2);
    const float factor = 1 / sqrtf(running > 1e-10f ? running : 1e-10f);
    before += double(sum), after += double(sum) * double(factor) * double(factor);
    sums[i] = factor;
  }
  before = block_sum(before, before_sums), after = block_sum(after, after_sums);
  const float rescale = after > 0 ? float(sqrt(before / after)) : 1.0f;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sums[i] *= rescale;  // each thread its own
}

template <int N, class T>
void sum_neurons(CudaStream& s, float* sums, const T* x, int64_t n, int64_t R, int64_t C) {
  if (R < C) {
    const dim3 grid(unsigned(ceil_div(C, 32 * N)), unsigned(n));
    column_squares<N><<<grid, 32 * column_warps, 0, s.handle>>>(sums, x, R, C);
  } else {
    row_squares<N><<<unsigned(ceil_div(n * R, warps)), threads, 0, s.handle>>>(sums, x, n * R, C);
  }
}

void make_factors(CudaStream& s, const NeuronFactorsArgs& args, int64_t R, int64_t C) {
  const Pieces& p = args.pieces;
  const int64_t neurons = std::max(R, C);
  for (int64_t first = 0; first < p.count; first += most_matrices) {
    const int64_t count = std::min(most_matrices, p.count - first);
    MomentTable table{};
    std::copy_n(p.begin + first, count, table.begin);
    factors_of_sums<<<unsigned(count), 1024, 0, s.handle>>>(
        as<float>(args.factors) + first * neurons, as<float>(args.moment),
        as<UpdateState>(args.gate), table, neurons, float(std::min(R, C)), args.beta2);
  }
}

}  // namespace

void sum_squares_in_parts(CudaStream& s, const Tensor& squares, const Tensor& x) {
  expect_dtypes("sum_squares_in_parts", DType::f32, squares);
  const int64_t n = squares.shape[0], size = x.numel() / n;
  by_dtype("sum_squares_in_parts", x, [&]<class T>(T*) {
    by_width<T>(packs_fit(size, x), [&]<int N>(Number<N>) {
      square_parts<N><<<dim3(unsigned(row_parts), unsigned(n)), threads, 0, s.handle>>>(
          as<float>(squares), as<T>(x), size);
    });
  });
  check_launch("sum_squares_in_parts");
}

void unit_matrix(Stream& stream, const UnitMatrixArgs& args) {
  CudaStream& s = on(stream);
  expect_dtypes("unit_matrix", DType::f32, args.squares);
  expect_dtypes("unit_matrix", args.x.dtype, args.y);
  const int64_t n = args.x.shape[0], size = args.x.shape[1] * args.x.shape[2];
  if (n * size == 0) return;
  by_dtype("unit_matrix", args.x, [&]<class T>(T*) {
    by_width<T>(packs_fit(size, args.x, args.y), [&]<int N>(Number<N>) {
      const int64_t full = ceil_div(int64_t(s.card.processors) * 8, n);
      const dim3 grid(unsigned(std::min(ceil_div(size, threads * N), full)), unsigned(n));
      divide_by_norm<N><<<grid, threads, 0, s.handle>>>(as<T>(args.y), as<T>(args.x),
                                                        as<float>(args.squares), size);
    });
  });
  check_launch("unit_matrix");
}

void neuron_factors(Stream& stream, const NeuronFactorsArgs& args) {
  CudaStream& s = on(stream);
  expect_dtypes("neuron_factors", DType::f32, args.factors, args.moment);
  const int64_t n = args.x.shape[0], R = args.x.shape[1], C = args.x.shape[2];
  if (n * R * C == 0) return;
  by_dtype("neuron_factors", args.x, [&]<class T>(T*) {
    by_width<T>(packs_fit(C, args.x), [&]<int width>(Number<width>) {
      sum_neurons<width>(s, as<float>(args.factors), as<T>(args.x), n, R, C);
    });
  });
  make_factors(s, args, R, C);
  check_launch("neuron_factors");
}

}  // namespace hearth::cuda
