// Code shared by the kernels of grouped products: which rows a tile has, and how a quad of lanes
// gathers what it holds of a row into 16 adjacent bytes.
#pragma once

#include "core/math.h"
#include "cuda/device/device.cuh"
#include "cuda/gemm/gemm_grouped.h"

namespace hearth::cuda::grouped {

// What a kernel with square tiles reads of a call.
struct SquareParams {
  const void *left, *right;
  void* out;
  const int *offsets, *gather;
  int groups, N, K;
  int columns;  // tiles in a row of the result
  int tiles;    // of one gradient of weights
  bool wide;    // out is f32
  bool add;
};

inline SquareParams square_params(const GroupedCall& c, int64_t side) {
  const int64_t columns = ceil_div(c.form == GroupedForm::weights ? c.K : c.N, side);
  return {.left = c.left,
          .right = c.right,
          .out = c.out,
          .offsets = c.offsets,
          .gather = c.gather,
          .groups = int(c.groups),
          .N = int(c.N),
          .K = int(c.K),
          .columns = int(columns),
          .tiles = int(columns * ceil_div(c.N, side)),
          .wide = c.out_dtype == DType::f32,
          .add = c.add};
}

// At most this many tiles have work. How many rows a group has is known on the device only.
inline int64_t most_tiles(const GroupedCall& c, const SquareParams& p, int64_t side) {
  if (c.form == GroupedForm::weights) return c.groups * p.tiles;
  return (ceil_div(c.rows, side) + c.groups) * p.columns;
}

// Some rows of one group.
struct RowTile {
  int group, first, end;  // `end` is that of the group
};

// The bounds of all groups in shared memory, and how many tiles of `tile_rows` rows come before
// each group.
template <int tile_rows>
class GroupTiles {
 public:
  static constexpr int bytes(int64_t groups) { return int(8 * (groups + 1)); }

  __device__ GroupTiles(void* memory, int groups)
      : offsets_(static_cast<int*>(memory)), starts_(offsets_ + groups + 1), groups_(groups) {}

  // Called by the first warp of the block; a barrier of the block must follow.
  __device__ void build(const int* offsets) const {
    const int lane = int(threadIdx.x) % 32;
    int before = 0;
    for (int first = 0; first <= groups_; first += 32) {
      const int g = first + lane;
      const int begin = g <= groups_ ? offsets[g] : 0, end = g < groups_ ? offsets[g + 1] : begin;
      const int tiles = (end - begin + tile_rows - 1) / tile_rows;
      int sum = tiles;  // of this lane and those below
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
      }
      if (g <= groups_) offsets_[g] = begin, starts_[g] = before + sum - tiles;
      before += __shfl_sync(~0u, sum, 31);
    }
  }

  __device__ int count() const { return starts_[groups_]; }
  __device__ RowTile at(int tile) const {
    int low = 0, high = groups_;  // starts_[low] <= tile < starts_[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (starts_[middle] <= tile ? low : high) = middle;
    }
    return {low, offsets_[low] + (tile - starts_[low]) * tile_rows, offsets_[low + 1]};
  }

 private:
  int* const offsets_;
  int* const starts_;
  const int groups_;
};

// The groups by falling number of rows, in shared memory. The cost of a tile of a gradient grows
// with the rows of its group: blocks that take the longest first end at about the same time.
class GroupOrder {
 public:
  static constexpr int bytes(int64_t groups) { return int(8 * groups); }
  static constexpr int most_sorted = 512;  // with more groups, sorting would take too long

  __device__ GroupOrder(void* memory, int groups)
      : rows_(static_cast<int*>(memory)), order_(rows_ + groups), groups_(groups) {}

  // Called by all threads of the block; a barrier must follow.
  __device__ void build(const int* offsets) const {
    const int step = int(blockDim.x);
    for (int g = int(threadIdx.x); g < groups_; g += step)
      rows_[g] = offsets[g + 1] - offsets[g], order_[g] = g;
    if (groups_ > most_sorted) return;
    __syncthreads();
    for (int g = int(threadIdx.x); g < groups_; g += step) {
      const int rows = rows_[g];
      int place = 0;
      for (int other = 0; other < groups_; ++other)
        place += rows_[other] > rows || (rows_[other] == rows && other < g);
      order_[place] = g;
    }
  }
  __device__ int operator[](int place) const { return order_[place]; }

 private:
  int* const rows_;
  int* const order_;
  const int groups_;
};

// The tiles of one block, in rounds: every block takes one of each round, in alternating direction,
// so that no block always has the longest.
class Rounds {
 public:
  // The next of `count` tiles; -1: no more.
  __device__ int next(int count) {
    const int blocks = int(gridDim.x), own = int(blockIdx.x);
    while (round_ * blocks < count) {
      const int at = round_ * blocks + (round_ % 2 ? blocks - 1 - own : own);
      ++round_;
      if (at < count) return at;
    }
    return -1;
  }

 private:
  int round_ = 0;
};

// The four lanes of a quad transpose a 4 x 4 matrix of words: word i of lane q becomes word q of
// lane i.
__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4], int lane) {
  const bool odd = lane & 1, upper = lane & 2;
  const uint32_t x = __shfl_xor_sync(~0u, odd ? w[0] : w[1], 1);
  const uint32_t y = __shfl_xor_sync(~0u, odd ? w[2] : w[3], 1);
  const uint32_t a[2] = {odd ? x : w[0], odd ? w[1] : x};
  const uint32_t b[2] = {odd ? y : w[2], odd ? w[3] : y};
  const uint32_t s = __shfl_xor_sync(~0u, upper ? a[0] : b[0], 2);
  const uint32_t t = __shfl_xor_sync(~0u, upper ? a[1] : b[1], 2);
  w[0] = upper ? s : a[0], w[1] = upper ? t : a[1];
  w[2] = upper ? b[0] : s, w[3] = upper ? b[1] : t;
}

// Accumulators of one row over 32 columns, as mma and wgmma hold them: lane q of a quad has columns
// 8 j + 2 q and the next in x[2 j], x[2 j + 1]. This stores them all as 16-bit floats; `to` is the
// address of the first column, and columns from `limit` (a multiple of 8) on are left out.
template <class T>
__device__ __forceinline__ void store_row32(T* to, const float (&x)[8], int lane, int limit) {
  uint32_t w[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float two[2] = {x[2 * j], x[2 * j + 1]};
    Pack<T, 2> pair;
    round_to(pair, two);
    w[j] = pair.w[0];
  }
  transpose_quad(w, lane);  // now this lane has columns 8 q .. 8 q + 7
  const int column = lane % 4 * 8;
  if (column < limit) *reinterpret_cast<uint4*>(to + column) = make_uint4(w[0], w[1], w[2], w[3]);
}

// Where 32 columns of a row of a gradient of weights lie.
struct Piece {
  int64_t at;  // element of the first column
  int limit;   // columns that exist, a multiple of 8; at most 0: none
};

// Stores or adds n pieces of a gradient in T or f32. All earlier contents are read before anything
// is written, so that the reads are in flight together.
template <class T, int n>
__device__ __forceinline__ void store_pieces16(T* out, const Piece (&pieces)[n],
                                               const float (&x)[n][8], int lane, bool add) {
  const int column = lane % 4 * 8;
  Pack<T, 8> prior[n];
#pragma unroll
  for (int i = 0; i < n; ++i)
    if (add && column < pieces[i].limit) prior[i] = load<8>(out + pieces[i].at + column);
#pragma unroll
  for (int i = 0; i < n; ++i) {
    uint32_t low[4], high[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      low[j] = __float_as_uint(x[i][2 * j]), high[j] = __float_as_uint(x[i][2 * j + 1]);
    transpose_quad(low, lane);
    transpose_quad(high, lane);
    if (column >= pieces[i].limit) continue;
    float sum[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      sum[j] = __uint_as_float(j % 2 ? high[j / 2] : low[j / 2]);
      if (add) sum[j] += get(prior[i], j);
    }
    store_rounded(out + pieces[i].at + column, sum);
  }
}

// In f32, the lanes of a pair exchange columns so that each stores four adjacent ones.
template <int n>
__device__ __forceinline__ void store_pieces32(float* out, const Piece (&pieces)[n],
                                               const float (&x)[n][8], int lane, bool add) {
  const bool odd = lane & 1;
  const int column = 8 * int(odd) + 2 * (lane & 2);  // and 16 further
  const auto place = [&](int i, int j) {
    return reinterpret_cast<float4*>(out + pieces[i].at + column + 16 * j);
  };
  float4 prior[n][2];
#pragma unroll
  for (int i = 0; i < n; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j)
      if (add && column + 16 * j < pieces[i].limit) prior[i][j] = *place(i, j);
#pragma unroll
  for (int i = 0; i < n; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float *left = x[i] + 4 * j, *right = left + 2;  // eight columns apart
      const float a = __shfl_xor_sync(~0u, odd ? left[0] : right[0], 1);
      const float b = __shfl_xor_sync(~0u, odd ? left[1] : right[1], 1);
      float4 v = odd ? float4{a, b, right[0], right[1]} : float4{left[0], left[1], a, b};
      if (column + 16 * j >= pieces[i].limit) continue;
      if (add) {
        const float4& p = prior[i][j];
        v.x += p.x, v.y += p.y, v.z += p.z, v.w += p.w;
      }
      *place(i, j) = v;
    }
}

template <class T, int n>
__device__ __forceinline__ void store_pieces(void* out, bool wide, const Piece (&pieces)[n],
                                             const float (&x)[n][8], int lane, bool add) {
  if (wide)
    store_pieces32(static_cast<float*>(out), pieces, x, lane, add);
  else
    store_pieces16(static_cast<T*>(out), pieces, x, lane, add);
}

}  // namespace hearth::cuda::grouped
