// What a block of gemm_some.cu is made of: where things lie in its shared memory, and what it does
// to the sums.
#pragma once

#include "cuda/device.cuh"
#include "cuda/gemm_rows.cuh"

namespace hearth::cuda {

constexpr int some_rows_of_block = 32, some_columns = 32;  // of c
constexpr int some_threads = 256;
constexpr int some_cluster = 8;   // blocks that split K, at most
constexpr int some_slice = 1024;  // columns of a in a block, at most
constexpr int some_pieces = 4;    // that a arrives in
constexpr int some_parts = 4;     // of K, by warps

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
  bool fours;  // four columns may be moved at once
};

// Where things lie in a block's shared memory, in bytes. Rows of the tiles are an odd number of 16
// bytes apart, so that ldmatrix meets no bank twice.
struct SomeShared {
  static constexpr int sum_pitch = some_columns + 8;  // floats
  int pitch, a, w, end;

  __host__ __device__ SomeShared(int slice, bool split) {
    pitch = 2 * slice + 16;
    a = split ? some_rows_of_block * some_columns * 4 : 0;  // before it: what others send
    w = a + some_rows_of_block * pitch;
    end = w + some_columns * pitch;
    // The sums of the warps lie over the tiles when those are done with.
    const int sums = a + some_parts * some_rows_of_block * sum_pitch * 4;
    if (end < sums) end = sums;
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

}  // namespace hearth::cuda
