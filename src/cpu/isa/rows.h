// What all kernels of this folder use: dispatch on a tensor's dtype, loops over vectors with their
// tail, and the division of rows into pieces (by shape alone).
#pragma once

#include "core/kernels.h"
#include "cpu/isa/parallel.h"
#include "cpu/isa/simd_math.h"
#include "cpu/stream.h"

namespace hearth::HEARTH_ISA {

HEARTH_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
HEARTH_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
HEARTH_INLINE int64_t round_up(int64_t a, int64_t step) { return (a + step - 1) / step * step; }

HEARTH_INLINE int64_t count(const Tensor& t) {
  int64_t n = 1;
  for (int i = 0; i < t.shape.rank; ++i) n *= t.shape[i];
  return n;
}
HEARTH_INLINE int64_t row_count(const Tensor& t) { return t.cols() ? count(t) / t.cols() : 0; }

HEARTH_INLINE const Scalars& scalars_of(const Tensor& t) { return *t.as<const Scalars>(); }

// Absent tensors are not checked.
HEARTH_INLINE void expect_dtype(const char* op, DType want, const Tensor& t) {
  if (t && t.dtype != want) refuse_dtypes(op, want, t.dtype);
}
template <class... Ts>
HEARTH_INLINE void expect_dtypes(const char* op, DType want, const Ts&... ts) {
  (expect_dtype(op, want, ts), ...);
}

// Calls f(static_cast<T*>(nullptr)) with the element type of t.
template <class F>
HEARTH_INLINE void by_dtype(const char* op, const Tensor& t, F&& f) {
  if (t.dtype == DType::f32) {
    f(static_cast<float*>(nullptr));
  } else if (t.dtype == DType::bf16) {
    f(static_cast<bf16*>(nullptr));
  } else {
    refuse_dtype(op, t.dtype);
  }
}

// A vector's worth of memory: all lanes, or the first n of a row's tail.
struct Whole {
  template <class T>
  HEARTH_INLINE vf get(const T* p) const {
    return load(p);
  }
  template <class T>
  HEARTH_INLINE void put(T* p, vf a) const {
    store(p, a);
  }
  HEARTH_INLINE vf only(vf a, float) const { return a; }
};

HEARTH_INLINE vi lane_numbers() {
  vi r;
  for (int i = 0; i < lanes; ++i) r[i] = i;
  return r;
}

struct Part {
  int64_t n;
  template <class T>
  HEARTH_INLINE vf get(const T* p) const {
    return load_partial(p, n);
  }
  template <class T>
  HEARTH_INLINE void put(T* p, vf a) const {
    store_partial(p, a, n);
  }
  // Fills the lanes past the tail with `other`.
  HEARTH_INLINE vf only(vf a, float other) const {
    return select(lane_numbers() < int32_t(n), a, broadcast(other));
  }
};

// f(i, Whole) for every whole vector of [0, n), then f(i, Part) for the rest.
template <class F>
HEARTH_INLINE void vectors(int64_t n, F&& f) {
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) f(i, Whole{});
  if (i < n) f(i, Part{n - i});
}

// body(begin, end) over rows of `width` elements, in pieces of about 32 Ki elements.
template <class Body>
void over_rows(Stream& s, int64_t rows, int64_t width, Body&& body) {
  const int64_t grain = larger(1, 32768 / larger(1, width));
  parallel(cpu_stream(s).threads, (rows + grain - 1) / grain,
           [&](int64_t piece, int) { body(piece * grain, smaller(rows, (piece + 1) * grain)); });
}

// body(begin, end) over a flat range, in pieces that start at multiples of 32 Ki elements.
template <class Body>
void over_elements(Stream& s, int64_t n, Body&& body) {
  over_rows(s, n, 1, body);
}

// First row of part p of row_parts.
HEARTH_INLINE int64_t part_begin(int64_t rows, int64_t p) { return rows * p / row_parts; }

// The sum of squares of n elements: short stretches in fp32, their sums in fp64.
template <class T>
double squares(const T* x, int64_t n) {
  constexpr int64_t stretch = 4096;
  double total = 0;
  for (int64_t at = 0; at < n; at += stretch) {
    const int64_t size = smaller(stretch, n - at);
    vf t[4] = {};
    int64_t i = 0;
    for (; i + 4 * lanes <= size; i += 4 * lanes)
      for (int k = 0; k < 4; ++k) {
        const vf a = load(x + at + i + k * lanes);
        t[k] = fma(a, a, t[k]);
      }
    vectors(size - i, [&](int64_t j, auto w) {
      const vf a = w.get(x + at + i + j);
      t[0] = fma(a, a, t[0]);
    });
    total += double(sum((t[0] + t[1]) + (t[2] + t[3])));
  }
  return total;
}

// out (n) = [out +] scale * sum over parts (row_parts, n), in order.
void add_parts(Stream&, float* out, const float* parts, int64_t n, float scale, bool add);

// exp(x) for x <= 0. Results below 2^-126 become 0: each denormal would cost a microcode assist.
HEARTH_INLINE vf exp_down(vf x) {
  const vf magic = broadcast(0x1.8p23f);  // adding it leaves round(x / ln 2) in the low bits
  const vf c = select(x < broadcast(-87.0f), broadcast(-87.0f), x);
  const vf shifted = fma(c, broadcast(1.44269504f), magic);
  const vf n = shifted - magic;
  vf r = fma(n, broadcast(-0x1.62e400p-1f), c);
  r = fma(n, broadcast(-0x1.7f7d1cp-20f), r);
  vf p = broadcast(1.38888889e-3f);
  p = fma(p, r, 8.33333333e-3f);
  p = fma(p, r, 4.16666667e-2f);
  p = fma(p, r, 1.66666667e-1f);
  p = fma(p, r, 0.5f);
  p = fma(p * r, r, r) + 1.0f;
  const vf scale = from_bits((bits(shifted) - bits(magic) + 127u) << 23);
  return select(x < broadcast(-87.0f), zero(), p * scale);
}

}  // namespace hearth::HEARTH_ISA
