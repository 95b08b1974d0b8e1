// Arguments and shared-memory layout of gemm_rows64.cu, and the epilogue of its sums.
#pragma once

#include "cuda/device/device.cuh"
#include "cuda/device/hopper.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/elementwise/act.cuh"

namespace hearth::cuda {

constexpr int some_rows = 64, some_columns = 64;  // of c per block
constexpr int some_panel = 64;                    // columns of a per TMA load
constexpr int some_panel_bytes = some_rows * some_panel * 2;
constexpr int some_panels = 8;   // per block, at most
constexpr int some_cluster = 8;  // blocks that split K, at most

template <class T>
struct SomeArgs {
  CUtensorMap a, w;
  const T* bias;
  const void* prior;
  void *c, *aux;  // f32 if wide, or T
  int M, N, K;
  int panels;  // per block
  float alpha;
  Act act;
  bool weight;  // no earlier kernel writes w, bias, gain or shift: they may be read before the wait
  bool wide;
  bool eights;  // eight columns may be moved at once
  // Of the norm; gain and shift may be null.
  const T *gain = nullptr, *shift = nullptr;
  float eps = 0, each = 0;  // each: 1 / K
  bool layer = false;
};

// Layout of a block's shared memory, in bytes from a multiple of 1024.
struct SomeShared {
  static constexpr int sum_pitch = some_columns + 4;  // floats
  int w;      // panels of w, after those of a; this block's own sums overwrite them at the end
  int sums;   // (split - 1, rows of this block, sum_pitch) floats, from the other blocks
  int terms;  // (split, columns) pairs: what the norm subtracts from a column's sum, and adds
  int rows;   // (split, rows of this block) pairs: sum and sum of squares of the elements
  int gain, shift;  // of the norm, for this block's part of K
  int barriers, end;

  __host__ __device__ SomeShared(int panels, int split, bool normed) {
    const int own = some_rows / split;
    w = panels * some_panel_bytes;
    sums = w + (w > own * sum_pitch * 4 ? w : own * sum_pitch * 4);
    terms = sums + (split - 1) * own * sum_pitch * 4;
    rows = terms + (normed ? split * some_columns * 8 : 0);
    gain = rows + (normed ? some_rows * 8 : 0);
    shift = gain + (normed ? panels * some_panel * 2 : 0);
    barriers = shift + (normed ? panels * some_panel * 2 : 0);
    end = barriers + 8 * (some_panels + 3);
  }
};

// Reads eight columns of a row, or as many as there are.
template <class T>
__device__ __forceinline__ void some_read(float (&x)[8], const T* from, int count, bool eights) {
  if (eights) {
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const Pack<T, 4> v = load<4>(from + i);
#pragma unroll
      for (int e = 0; e < 4; ++e) x[i + e] = get(v, e);
    }
  } else {
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] = e < count ? float(from[e]) : 0;
  }
}
template <class T>
__device__ __forceinline__ void some_write(T* to, const float (&x)[8], int count, bool eights) {
  if (eights) {
    if constexpr (sizeof(T) == 2) {
      store_rounded(to, x);
    } else {
      reinterpret_cast<float4*>(to)[0] = {x[0], x[1], x[2], x[3]};
      reinterpret_cast<float4*>(to)[1] = {x[4], x[5], x[6], x[7]};
    }
  } else {
#pragma unroll
    for (int e = 0; e < 8; ++e)
      if (e < count) to[e] = T(x[e]);
  }
}

// Eight columns of c that one thread writes; only this thread reads the prior there.
template <class T>
struct SomeEight {
  const SomeArgs<T>& p;
  int m, n, count;  // count <= 0: none

  __device__ __forceinline__ SomeEight(const SomeArgs<T>& args, int row, int column)
      : p(args), m(row), n(column), count(m < args.M ? min(8, args.N - n) : 0) {}
  __device__ __forceinline__ int64_t at() const { return int64_t(m) * p.N + n; }
  __device__ __forceinline__ void read_bias(float (&x)[8]) const {
    if (p.bias && count > 0) some_read(x, p.bias + n, count, p.eights);
  }
  __device__ __forceinline__ void read_prior(float (&x)[8]) const {
    if (!p.prior || count <= 0) return;
    if (p.wide)
      some_read(x, static_cast<const float*>(p.prior) + at(), count, p.eights);
    else
      some_read(x, static_cast<const T*>(p.prior) + at(), count, p.eights);
  }
  __device__ __forceinline__ void write(void* to, const float (&x)[8]) const {
    if (p.wide)
      some_write(static_cast<float*>(to) + at(), x, count, p.eights);
    else
      some_write(static_cast<T*>(to) + at(), x, count, p.eights);
  }
  template <Act act>
  static __device__ __forceinline__ void apply(float (&x)[8]) {
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] = act_value_for<act, T>(x[e]);
  }
  // The epilogue, from the sum over K plus the bias.
  __device__ __forceinline__ void finish(float (&x)[8], const float (&prior)[8]) const {
    if (p.act != Act::none) {
      if (!p.wide)  // rounded, as everywhere, so that recomputation gives the same bits
#pragma unroll
        for (int e = 0; e < 8; ++e) x[e] = float(T(x[e]));
      if (p.aux) write(p.aux, x);
      if (p.act == Act::gelu_tanh)
        apply<Act::gelu_tanh>(x);
      else if (p.act == Act::gelu_erf)
        apply<Act::gelu_erf>(x);
      else
        apply<Act::relu2>(x);  // products take no GLU
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] = p.prior ? fmaf(p.alpha, x[e], prior[e]) : p.alpha * x[e];
    write(p.c, x);
  }
};

}  // namespace hearth::cuda
