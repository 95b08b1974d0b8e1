// Grouped products by plain FMAs, for f32 and for rows that begin at any element: 2 R N K FLOPs. A
// block computes tiles of 64 x 64, one after another; a thread has 4 x 4 elements.
#include <algorithm>

#include "cuda/gemm/gemm_grouped.h"
#include "cuda/gemm/gemm_grouped_tiles.cuh"

namespace hearth::cuda {
namespace {

using namespace grouped;

constexpr int simple_side = 64, simple_depth = 16, simple_threads = 256;

struct SimpleTile {
  int group, first, end;  // rows of the group
  int row, column;        // of the result; the row is only that of a gradient
};

template <class T>
__device__ __forceinline__ float element(const void* matrix, int64_t at, bool real) {
  return real ? get(load<1>(static_cast<const T*>(matrix) + at), 0) : 0.0f;
}

template <class T, GroupedForm form>
struct SimpleBlock {
  static constexpr bool weights = form == GroupedForm::weights;
  const SquareParams& p;
  float (&left)[simple_depth][simple_side];
  float (&right)[simple_depth][simple_side];

  __device__ int64_t row_of_a(int r) const { return p.gather ? p.gather[r] : r; }

  // Element (m, k) of the left operand of a tile, and (n, k) of the right one.
  __device__ float left_at(const SimpleTile& t, int m, int k) const {
    if constexpr (weights) {
      const int r = t.first + k, n = t.row + m;
      return element<T>(p.left, int64_t(r) * p.N + n, r < t.end && n < p.N);
    } else {
      const int r = t.first + m;
      const bool real = r < t.end && k < p.K;
      return element<T>(p.left, real ? row_of_a(r) * p.K + k : 0, real);
    }
  }
  __device__ float right_at(const SimpleTile& t, int n, int k) const {
    const int column = t.column + n;
    if constexpr (weights) {
      const int r = t.first + k;
      const bool real = r < t.end && column < p.K;
      return element<T>(p.right, real ? row_of_a(r) * p.K + column : 0, real);
    } else {
      const int64_t matrix = int64_t(t.group) * p.N * p.K;
      const int64_t at =
          form == GroupedForm::transposed ? int64_t(column) * p.K + k : int64_t(k) * p.N + column;
      return element<T>(p.right, matrix + at, column < p.N && k < p.K);
    }
  }

  // Neighbouring threads read neighbouring elements: along k, or across it where memory runs so.
  template <bool down, class At>
  __device__ void fill(float (&to)[simple_depth][simple_side], int first, At at) const {
#pragma unroll
    for (int i = 0; i < simple_depth * simple_side / simple_threads; ++i) {
      const int e = int(threadIdx.x) + i * simple_threads;
      const int k = down ? e / simple_side : e % simple_depth;
      const int m = down ? e % simple_side : e / simple_depth;
      to[k][m] = at(m, first + k);
    }
  }

  __device__ void run(const SimpleTile& t) const {
    const int terms = weights ? t.end - t.first : p.K;
    if (weights && p.add && terms == 0) return;
    const int row = int(threadIdx.x) / 16 * 4, column = int(threadIdx.x) % 16 * 4;
    float sums[4][4] = {};
    for (int first = 0; first < terms; first += simple_depth) {
      fill<weights>(left, first, [&](int m, int k) { return left_at(t, m, k); });
      fill<form != GroupedForm::transposed>(right, first,
                                            [&](int n, int k) { return right_at(t, n, k); });
      __syncthreads();
#pragma unroll
      for (int k = 0; k < simple_depth; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j)
            sums[i][j] = fmaf(left[k][row + i], right[k][column + j], sums[i][j]);
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) finish(t, row + i, t.column + column + j, sums[i][j]);
  }

  __device__ void finish(const SimpleTile& t, int row, int column, float x) const {
    if constexpr (weights) {
      const int n = t.row + row;
      if (n >= p.N || column >= p.K) return;
      const int64_t at = (int64_t(t.group) * p.N + n) * p.K + column;
      p.wide ? put(static_cast<float*>(p.out) + at, x) : put(static_cast<T*>(p.out) + at, x);
    } else {
      const int r = t.first + row;
      if (r < t.end && column < p.N) put(static_cast<T*>(p.out) + int64_t(r) * p.N + column, x);
    }
  }
  template <class Out>
  __device__ void put(Out* to, float x) const {
    const float sum[1] = {p.add ? x + get(load<1>(to), 0) : x};
    store_rounded(to, sum);
  }
};

template <class T, GroupedForm form>
__global__ void __launch_bounds__(simple_threads) multiply_groups_simple(SquareParams p) {
  extern __shared__ int simple_bounds[];
  __shared__ float left[simple_depth][simple_side], right[simple_depth][simple_side];
  constexpr bool weights = form == GroupedForm::weights;
  const GroupTiles<simple_side> rows(simple_bounds, p.groups);
  if (!weights) {
    if (threadIdx.x < 32) rows.build(p.offsets);
    __syncthreads();
  }
  const SimpleBlock<T, form> block{p, left, right};
  const int count = weights ? p.groups * p.tiles : rows.count() * p.columns;
  for (int index = int(blockIdx.x); index < count; index += int(gridDim.x)) {
    if constexpr (weights) {
      const int group = index / p.tiles, rest = index % p.tiles;
      block.run({group, p.offsets[group], p.offsets[group + 1], rest / p.columns * simple_side,
                 rest % p.columns * simple_side});
    } else {
      const RowTile t = rows.at(index / p.columns);
      block.run({t.group, t.first, t.end, 0, index % p.columns * simple_side});
    }
  }
}

template <class T, GroupedForm form>
void launch_simple(CudaStream& s, const GroupedCall& c) {
  const SquareParams p = square_params(c, simple_side);
  const int64_t tiles = most_tiles(c, p, simple_side);
  const int64_t blocks = std::min<int64_t>(int64_t(4) * s.card.processors, tiles);
  const auto shared = size_t(GroupTiles<simple_side>::bytes(c.groups));
  multiply_groups_simple<T, form><<<unsigned(blocks), simple_threads, shared, s.handle>>>(p);
}

}  // namespace

void gemm_grouped_simple(CudaStream& s, const GroupedCall& c) {
  by_dtype("grouped_gemm", {nullptr, {}, c.dtype}, [&]<class T>(T*) {
    switch (c.form) {
      case GroupedForm::transposed:
        return launch_simple<T, GroupedForm::transposed>(s, c);
      case GroupedForm::plain:
        return launch_simple<T, GroupedForm::plain>(s, c);
      case GroupedForm::weights:
        return launch_simple<T, GroupedForm::weights>(s, c);
    }
  });
  check_launch("grouped_gemm");
}

}  // namespace hearth::cuda
