// What a block of gemm_some.cu is made of: where things lie in its shared memory, what it says
// about rows that are normed, and what it does to the sums.
#pragma once

#include "cuda/device.cuh"
#include "cuda/gemm_rows.cuh"

namespace hearth::cuda {

constexpr int some_columns = 64;                    // of c in a block
constexpr int some_cluster = 8;                     // blocks that split K, at most
constexpr int some_slice = 512, some_normed = 256;  // columns of a in a block, at most
constexpr int some_pieces = 4;                      // that a arrives in

template <class T>
struct SomeArgs {
  const T *a, *w, *bias;
  const void* prior;
  void *c, *aux;  // f32 if wide, or T
  int M, N, K;
  int split, slice;  // blocks of a cluster; columns of a in each, a multiple of 16
  float alpha;
  Act act;
  bool weight;  // no kernel ahead writes w
  bool wide;
  bool fours;                                 // four columns may be moved at once
  const T *gain = nullptr, *shift = nullptr;  // of the norm; may be null
  float eps = 0;
  bool layer = false;
};

// Where things lie in a block's shared memory, in bytes. Rows of the tiles are an odd number of 16
// bytes apart, so that ldmatrix meets no bank twice.
struct SomeShared {
  int pitch, stats, gain, shift, a, w, end;

  __host__ __device__ SomeShared(int rows, int slice, bool normed) {
    pitch = 2 * slice + 16;
    stats = rows * some_columns * 4;  // before them: sums of all blocks, of rows / split rows
    gain = stats + (normed ? rows * some_cluster * 8 : 0);
    shift = gain + (normed ? 2 * slice : 0);
    a = shift + (normed ? 2 * slice : 0);
    w = a + rows * pitch;
    end = w + some_columns * pitch;
    // What the warps swap lies over the tiles when they are done with.
    if (end < a + rows * some_columns * 4) end = a + rows * some_columns * 4;
  }
};

// Four columns of a row of memory, or as many as there are.
template <class T>
__device__ __forceinline__ void some_read(float (&x)[4], const T* from, int count, bool fours) {
  if (fours) {
    const Pack<T, 4> v = load<4>(from);
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = get(v, e);
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = e < count ? float(from[e]) : 0;
  }
}
template <class T>
__device__ __forceinline__ void some_write(T* to, const float (&x)[4], int count, bool fours) {
  if (fours) {
    store_rounded(to, x);
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (e < count) to[e] = T(x[e]);
  }
}

// Of c, four columns that one thread writes: it reads what they add to, and nobody else does.
template <class T>
struct SomeFour {
  int row, column, m, n, count;  // row and column of the block's share of c

  __device__ __forceinline__ SomeFour(const SomeArgs<T>& p, int id, int first_row, int first) {
    row = id / (some_columns / 4), column = id % (some_columns / 4) * 4;
    m = first_row + row, n = first + column;
    count = m < p.M ? min(4, p.N - n) : 0;  // none if not positive
  }
  __device__ __forceinline__ int64_t at(const SomeArgs<T>& p) const { return int64_t(m) * p.N + n; }
  __device__ __forceinline__ void read_bias(const SomeArgs<T>& p, float (&x)[4]) const {
    if (p.bias && count > 0) some_read(x, p.bias + n, count, p.fours);
  }
  __device__ __forceinline__ void read_prior(const SomeArgs<T>& p, float (&x)[4]) const {
    if (!p.prior || count <= 0) return;
    if (p.wide)
      some_read(x, static_cast<const float*>(p.prior) + at(p), count, p.fours);
    else
      some_read(x, static_cast<const T*>(p.prior) + at(p), count, p.fours);
  }
  __device__ __forceinline__ void write(const SomeArgs<T>& p, void* to, const float (&x)[4]) const {
    if (p.wide)
      some_write(static_cast<float*>(to) + at(p), x, count, p.fours);
    else
      some_write(static_cast<T*>(to) + at(p), x, count, p.fours);
  }
  // From the sum over K on.
  __device__ __forceinline__ void finish(const SomeArgs<T>& p, float (&x)[4],
                                         const float (&bias)[4], const float (&prior)[4]) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] += bias[e];
    if (p.act != Act::none) {
      if (!p.wide)  // rounded, as everywhere: it can be made again to the bit
#pragma unroll
        for (int e = 0; e < 4; ++e) x[e] = float(T(x[e]));
      if (p.aux) write(p, p.aux, x);
#pragma unroll
      for (int e = 0; e < 4; ++e) x[e] = act_of_product<T>(p.act, x[e]);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = p.prior ? fmaf(p.alpha, x[e], prior[e]) : p.alpha * x[e];
    write(p, p.c, x);
  }
};

// Where the sums of columns 8 j + 2 t and the next of a half (32 columns) of a row lie among those
// of the row: what a thread has of two tiles is 16 bytes, what four threads have lies together, and
// rows next to each other do not meet in a bank.
__device__ __forceinline__ int some_place(int row, int half, int j, int t) {
  return row * some_columns + 32 * half + 16 * ((j / 2) ^ (row & 1)) + 4 * t + 2 * (j % 2);
}

// Four lanes (8 apart) share a row and have every fourth chunk of it.
constexpr int some_chunks = some_normed / 8 / 4;

__device__ __forceinline__ float some_row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 8);
  return x + __shfl_xor_sync(~0u, x, 16);
}

// Mean (0 without) of `real` chunks of a row, and the sum of the squares of what they are off it.
template <class T>
__device__ __forceinline__ float2 some_stats(const uint4 (&x)[some_chunks], int part, int real,
                                             bool layer) {
  float mean = 0, squares = 0, f[8];
  if (layer && real > 0) {
#pragma unroll
    for (int i = 0; i < some_chunks; ++i) {  // zeros beyond the end add nothing
      eight_floats<T>(f, x[i]);
#pragma unroll
      for (int e = 0; e < 8; ++e) mean += f[e];
    }
    mean = some_row_sum(mean) / float(8 * real);
  }
#pragma unroll
  for (int i = 0; i < some_chunks; ++i) {
    if (part + 4 * i >= real) continue;
    eight_floats<T>(f, x[i]);
#pragma unroll
    for (int e = 0; e < 8; ++e) squares = fmaf(f[e] - mean, f[e] - mean, squares);
  }
  return {mean, some_row_sum(squares)};
}

// Mean and 1 / deviation of a row, from what the blocks found of their parts of it.
template <class T>
__device__ __forceinline__ float2 some_joined(const SomeArgs<T>& p, const float2* parts, int rows) {
  float mean = 0, squares = 0;
  if (p.layer) {
    for (int r = 0; r < p.split; ++r)
      mean = fmaf(float(min(max(p.K - r * p.slice, 0), p.slice)), parts[r * rows].x, mean);
    mean /= float(p.K);
  }
  for (int r = 0; r < p.split; ++r) {
    const float2 part = parts[r * rows];
    const float off = part.x - mean;
    squares += fmaf(off * off, float(min(max(p.K - r * p.slice, 0), p.slice)), part.y);
  }
  return {mean, rsqrtf(squares / float(p.K) + p.eps)};
}

}  // namespace hearth::cuda
