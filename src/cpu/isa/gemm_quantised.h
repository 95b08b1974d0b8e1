// Products with quantised weights (core/quantised.h): rows of x become int8 with one scale each,
// sums are integers, and an element ends with one multiplication by both scales. Because sums are
// exact, a row's bits depend neither on the rows beside it nor on the kernel that computed it.
#pragma once

#include "core/quantised.h"
#include "cpu/isa/gemm_pack.h"
#include "cpu/isa/gemm_table.h"
#include "cpu/isa/quant_dot.h"

namespace hearth::HEARTH_ISA::quant {

constexpr int row_vectors = int(quant_panel) / lanes;  // vectors that hold 4 k of a panel
constexpr int most_rows = int(quant_few_rows);         // most rows of x in registers

using Bytes [[gnu::vector_size(lanes)]] = int8_t;
constexpr int dots_flip = biased ? 0x80 : 0;

// --- rows of x ---
template <class T>
inline void quantise_row(int8_t* q, float* scale, int32_t* offsets, const T* x, int64_t K,
                         int64_t padded, uint8_t flip) {
  vf top = zero();
  int64_t i = 0;
  for (; i + lanes <= K; i += lanes) top = max(top, abs(load(x + i)));
  if (i < K) top = max(top, abs(load_partial(x + i, K - i)));
  const float most = max_lane(top);  // NaN if there is one
  const bool usable = most < __builtin_inff() && most > 1e-30f;
  *scale = most >= __builtin_inff() || most != most ? __builtin_nanf("") : usable ? most / 127 : 0;
  const float inverse = usable ? 127 / most : 0;
  for (i = 0; i < padded; i += lanes) {
    const vf v = i + lanes <= K ? load(x + i) : load_partial(x + i, i < K ? K - i : 0);
    const Bytes b = __builtin_convertvector(usable ? to_nearest(v * inverse) : vi{}, Bytes);
    std::memcpy(q + i, &b, sizeof b);
  }
  if (offsets) {  // -8 times the sum of each group: cancels the 8 that is added to int4 weights
    for (int64_t g = 0; g * quant_group < padded; ++g) {
      int32_t sum = 0;
      for (int64_t j = 0; j < quant_group; ++j) sum += q[g * quant_group + j];
      offsets[g] = -8 * sum;
    }
  }
  if (flip)
    for (i = 0; i < padded; ++i) q[i] = int8_t(uint8_t(q[i]) ^ flip);
}

inline void quantise_rows(const QuantRows& out, const void* x, bool half, int64_t ldx,
                          int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    int32_t* offsets = out.offsets ? out.offsets + r * (out.padded / quant_group) : nullptr;
    int8_t* q = out.q + r * out.ld;
    if (half)
      quantise_row(q, out.scales + r, offsets, static_cast<const bf16*>(x) + r * ldx, out.k,
                   out.padded, out.flip);
    else
      quantise_row(q, out.scales + r, offsets, static_cast<const float*>(x) + r * ldx, out.k,
                   out.padded, out.flip);
  }
}

// --- sums ---
// The integer sums of a panel with R rows.
template <int R>
using Sums = vi (&)[R][row_vectors];

template <int R>
HEARTH_INLINE void sum8(Sums<R> sums, const QuantRows& x, int64_t row, const int8_t* w) {
  constexpr int held = R * row_vectors;
  constexpr int S = held >= 8 ? 1 : held >= 4 ? 2 : held >= 2 ? 4 : 8;  // chains per sum
  constexpr int64_t ahead = 4096;
  vi part[S][R][row_vectors] = {};
  const int8_t* q = x.q + row * x.ld;
  for (int64_t k = 0; k < x.padded; k += 4 * S) {
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s, w += 64) {
      __builtin_prefetch(w + ahead);
#pragma GCC unroll 4
      for (int v = 0; v < row_vectors; ++v) {
        const vi wv = load_raw<vi>(w + v * lanes * 4);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
          part[s][r][v] = dot8(part[s][r][v], broadcast4(q + r * x.ld + k + 4 * s), wv);
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < row_vectors; ++v) {
      sums[r][v] = part[0][r][v];
      for (int s = 1; s < S; ++s) sums[r][v] += part[s][r][v];
    }
}

HEARTH_INLINE vi load_factors(const int8_t* p) {
  return __builtin_convertvector(load_raw<Bytes>(p), vi);
}

template <int R>
HEARTH_INLINE void sum4(Sums<R> sums, const QuantRows& x, int64_t row, const int8_t* panel,
                        int64_t factor_bytes) {
  constexpr int64_t group_bytes = quant_group * quant_panel / 2, ahead = 4096;
  const int64_t groups = x.padded / quant_group;
  const int8_t *q = x.q + row * x.ld, *w = panel + factor_bytes;
  const int32_t* offsets = x.offsets + row * groups;
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < row_vectors; ++v) sums[r][v] = vi{};
  for (int64_t g = 0; g < groups; ++g, w += group_bytes, q += quant_group) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) __builtin_prefetch(w + ahead + i * 64);
#pragma GCC unroll 4
    for (int v = 0; v < row_vectors; ++v) {
      const vi factor = load_factors(panel + g * quant_panel + v * lanes);
      vi low[4], high[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const vi both = load_raw<vi>(w + i * 64 + v * lanes * 4);
        low[i] = both & 0x0f0f0f0f;
        high[i] = (both >> 4) & 0x0f0f0f0f;
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        vi a = begin4(offsets[r * groups + g]), b = vi{};
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          a = dot4(a, low[i], broadcast4(q + r * x.ld + 4 * i));
          b = dot4(b, high[i], broadcast4(q + r * x.ld + 16 + 4 * i));
        }
        sums[r][v] = times4(sums[r][v], join4(a, b), factor);
      }
    }
  }
}

// --- from sums to c ---
struct Matrix {
  const std::byte* data;
  QuantLayout layout;
  const float* scales(int64_t panel) const {
    return reinterpret_cast<const float*>(data + layout.scales()) + panel * quant_panel;
  }
  const int32_t* sums(int64_t panel) const {
    return reinterpret_cast<const int32_t*>(data + layout.sums()) + panel * quant_panel;
  }
  const int8_t* panel(int64_t i) const {
    return reinterpret_cast<const int8_t*>(data + layout.panel(i));
  }
};

HEARTH_INLINE void put(float* to, vi sum, float x_scale, const float* w_scales) {
  store(to, to_float(sum) * (load(w_scales) * x_scale));
}

template <int R>
inline void panel_rows(float* acc, int64_t ld, const QuantRows& x, int64_t row, const Matrix& w,
                       int64_t panel) {
  vi sums[R][row_vectors];
  const bool eight = w.layout.format == WeightFormat::int8;
  if (eight)
    sum8<R>(sums, x, row, w.panel(panel));
  else
    sum4<R>(sums, x, row, w.panel(panel), w.layout.factor_bytes());
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < row_vectors; ++v) {
      vi s = sums[r][v];
      if (biased && eight) s -= load_raw<vi>(w.sums(panel) + v * lanes) * 128;
      put(acc + r * ld + v * lanes, s, x.scales[row + r], w.scales(panel) + v * lanes);
    }
}

// QuantKernel::multiply with dot products.
inline void multiply_dots(float* acc, int64_t ld, const QuantRows& x, const Matrix& w,
                          int64_t first, int64_t last, int64_t rows) {
  constexpr decltype(&panel_rows<1>) by_rows[most_rows] = {
      panel_rows<1>, panel_rows<2>, panel_rows<3>, panel_rows<4>,
      panel_rows<5>, panel_rows<6>, panel_rows<7>, panel_rows<8>};
  for (int64_t p = first; p < last; ++p)
    for (int64_t r = 0; r < rows; r += most_rows) {
      const int64_t n = rows - r < most_rows ? rows - r : int64_t(most_rows);
      by_rows[n - 1](acc + r * ld + (p - first) * quant_panel, ld, x, r, w, p);
    }
}

}  // namespace hearth::HEARTH_ISA::quant

#if defined(__AMX_INT8__)
#include "cpu/isa/quant_amx.h"
#elif defined(__ARM_FEATURE_MATMUL_INT8)
#include "cpu/isa/quant_i8mm.h"
#else
namespace hearth::HEARTH_ISA::quant {

inline void multiply(float* acc, int64_t ld, const QuantRows& x, const std::byte* packed,
                     int64_t first, int64_t last, int64_t rows, std::byte*) {
  multiply_dots(acc, ld, x, {packed, QuantLayout(*reinterpret_cast<const QuantHeader*>(packed))},
                first, last, rows);
}
constexpr QuantKernel kernel() {
  return {.name = instructions,
          .few_flip = dots_flip,
          .flip = dots_flip,
          .quantise = quantise_rows,
          .multiply = multiply};
}

}  // namespace hearth::HEARTH_ISA::quant
#endif
