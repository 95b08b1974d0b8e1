// Quantised products of too many rows for dot products, with SMMLA: 2 rows of x by 2 rows of w by 8
// k at a time. int4 is widened to int8 first.
#pragma once

#include "cpu/isa/simd.h"

namespace hearth::HEARTH_ISA::quant {

// Converts a panel of int4 to one of int8: factor * q fits a byte.
inline void widen(int8_t* to, const int8_t* panel, const QuantLayout& l) {
  const int8_t* w = panel + l.factor_bytes();
  for (int64_t g = 0; g < l.groups(); ++g, to += quant_group * quant_panel) {
    int8x16_t factors[row_vectors];
    for (int v = 0; v < row_vectors; ++v) {
      const vu bytes = (vu)load_factors(panel + g * quant_panel + v * lanes) & 0xffu;
      factors[v] = (int8x16_t)(bytes * 0x01010101u);
    }
    for (int i = 0; i < 4; ++i, w += 64)
      for (int v = 0; v < row_vectors; ++v) {
        const uint8x16_t both = vld1q_u8(reinterpret_cast<const uint8_t*>(w) + v * 16);
        const int8x16_t low = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
        const int8x16_t high = vreinterpretq_s8_u8(vshrq_n_u8(both, 4)), eight = vdupq_n_s8(8);
        vst1q_s8(to + i * 64 + v * 16, vmulq_s8(vsubq_s8(low, eight), factors[v]));
        vst1q_s8(to + (4 + i) * 64 + v * 16, vmulq_s8(vsubq_s8(high, eight), factors[v]));
      }
  }
}

// R pairs of rows of x by a panel; a register is {x0 w0, x0 w1, x1 w0, x1 w1}.
template <int R>
inline void panel_pairs(float* acc, int64_t ld, const QuantRows& x, int64_t row, int64_t rows,
                        const int8_t* w, const float* w_scales) {
  constexpr int C = int(quant_panel) / 2;
  int32x4_t c[R][C] = {};
  const int8_t* q = x.q + row * x.ld;
  for (int64_t k = 0; k < x.padded; k += 8, w += 128) {
    int8x16_t xv[R];
#pragma GCC unroll 2
    for (int r = 0; r < R; ++r)
      xv[r] = vcombine_s8(vld1_s8(q + 2 * r * x.ld + k), vld1_s8(q + (2 * r + 1) * x.ld + k));
#pragma GCC unroll 4
    for (int v = 0; v < C / 2; ++v) {  // 4 k of 4 rows, and the next 4 k
      const int32x4_t near = (int32x4_t)vld1q_s8(w + v * 16),
                      far = (int32x4_t)vld1q_s8(w + 64 + v * 16);
      const int8x16_t left = (int8x16_t)vzip1q_s32(near, far);
      const int8x16_t right = (int8x16_t)vzip2q_s32(near, far);
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r) {
        c[r][2 * v] = vmmlaq_s32(c[r][2 * v], xv[r], left);
        c[r][2 * v + 1] = vmmlaq_s32(c[r][2 * v + 1], xv[r], right);
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < C / 2; ++v) {
      const int64x2_t left = (int64x2_t)c[r][2 * v], right = (int64x2_t)c[r][2 * v + 1];
      const vi sums[2] = {(vi)vzip1q_s64(left, right), (vi)vzip2q_s64(left, right)};
      for (int i = 0; i < 2 && 2 * r + i < rows; ++i)
        put(acc + (2 * r + i) * ld + v * 4, sums[i], x.scales[row + 2 * r + i], w_scales + v * 4);
    }
}

inline void multiply_pairs(float* acc, int64_t ld, const QuantRows& x, const Matrix& w,
                           int64_t first, int64_t last, int64_t rows, int8_t* widened) {
  for (int64_t p = first; p < last; ++p) {
    const int8_t* panel = w.panel(p);
    if (w.layout.format == WeightFormat::int4) {
      widen(widened, panel, w.layout);
      panel = widened;
    }
    for (int64_t r = 0; r < rows; r += 4)
      (rows - r > 2 ? panel_pairs<2> : panel_pairs<1>)(acc + r * ld + (p - first) * quant_panel, ld,
                                                       x, r, rows - r, panel, w.scales(p));
  }
}

inline void multiply(float* acc, int64_t ld, const QuantRows& x, const std::byte* packed,
                     int64_t first, int64_t last, int64_t rows, std::byte* scratch) {
  const Matrix w{packed, QuantLayout(*reinterpret_cast<const QuantHeader*>(packed))};
  if (x.few)
    multiply_dots(acc, ld, x, w, first, last, rows);
  else
    multiply_pairs(acc, ld, x, w, first, last, rows, reinterpret_cast<int8_t*>(scratch));
}

constexpr QuantKernel kernel() {
  return {.name = "SMMLA and SDOT", .quantise = quantise_rows, .multiply = multiply};
}

}  // namespace hearth::HEARTH_ISA::quant
