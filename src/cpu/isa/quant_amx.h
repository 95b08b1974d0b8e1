// Quantised products of too many rows for dot products: TDPBSSD on 32 unpacked rows of x and two
// panels of w, in which 64 k of 16 rows already form a tile. int4 is widened to int8 first.
#pragma once

#include "cpu/isa/gemm_amx.h"

namespace hearth::HEARTH_ISA::quant {

constexpr int64_t tile_rows = 16;

// Converts a panel of int4 to one of int8: factor * q fits a byte. Bytes are multiplied as halves
// of 16-bit words.
inline void widen(int8_t* to, const int8_t* panel, const QuantLayout& l) {
  const int8_t* w = panel + l.factor_bytes();
  const __m512i eight = _mm512_set1_epi8(8), four_bits = _mm512_set1_epi8(15);
  const __m512i odd = _mm512_set1_epi16(short(0xff00));
  for (int64_t g = 0; g < l.groups(); ++g, to += quant_group * quant_panel) {
    const vi factor = load_factors(panel + g * quant_panel);
    const __m512i f = (__m512i)((factor & 0xffff) | (factor << 16));
    const auto times_factor = [&](__m512i nibbles) {
      const __m512i q = _mm512_sub_epi8(nibbles, eight);
      const __m512i low = _mm512_mullo_epi16(_mm512_slli_epi16(q, 8), f);
      const __m512i high = _mm512_mullo_epi16(_mm512_and_si512(q, odd), f);
      return _mm512_or_si512(_mm512_srli_epi16(low, 8), high);
    };
    for (int i = 0; i < 4; ++i, w += 64) {
      const __m512i both = _mm512_loadu_si512(w);
      _mm512_storeu_si512(to + i * 64, times_factor(_mm512_and_si512(both, four_bits)));
      _mm512_storeu_si512(to + (4 + i) * 64,
                          times_factor(_mm512_and_si512(_mm512_srli_epi16(both, 4), four_bits)));
    }
  }
}

// R tiles of 16 rows of x by C panels of w.
template <int R, int C>
inline void tiles(int32_t (&out)[4][256], const int8_t* x, int64_t ldx, const int8_t* w0,
                  const int8_t* w1, int64_t k) {
  _tile_zero(0);
  if (C == 2) _tile_zero(1);
  if (R == 2) _tile_zero(2);
  if (R == 2 && C == 2) _tile_zero(3);
  for (int64_t i = 0; i < k; i += 64, x += 64, w0 += 1024, w1 += 1024) {
    _tile_loadd(6, w0, 64);
    _tile_loadd(4, x, ldx);
    _tile_dpbssd(0, 4, 6);
    if (C == 2) {
      _tile_loadd(7, w1, 64);
      _tile_dpbssd(1, 4, 7);
    }
    if (R == 2) {
      _tile_loadd(5, x + 16 * ldx, ldx);
      _tile_dpbssd(2, 5, 6);
      if (C == 2) _tile_dpbssd(3, 5, 7);
    }
    for (int j = 0; j < 1024; j += 64) {  // the start of the next panels
      __builtin_prefetch(w0 + 4096 + j, 0, 2);
      if (C == 2) __builtin_prefetch(w1 + 4096 + j, 0, 2);
    }
  }
  _tile_stored(0, out[0], 64);
  if (C == 2) _tile_stored(1, out[1], 64);
  if (R == 2) _tile_stored(2, out[2], 64);
  if (R == 2 && C == 2) _tile_stored(3, out[3], 64);
  asm volatile("" ::: "memory");
}

inline void multiply_tiles(float* acc, int64_t ld, const QuantRows& x, const Matrix& w,
                           int64_t first, int64_t last, int64_t rows, int8_t* widened) {
  const amx_tiles::TileConfig config;
  const bool four = w.layout.format == WeightFormat::int4;
  alignas(64) int32_t out[4][256];
  for (int64_t p = first; p < last; p += 2) {
    const bool pair = last - p >= 2;
    const int8_t* panels[2] = {w.panel(p), pair ? w.panel(p + 1) : nullptr};
    for (int i = 0; four && i < (pair ? 2 : 1); ++i) {
      int8_t* to = widened + i * x.padded * quant_panel;
      widen(to, panels[i], w.layout);
      panels[i] = to;
    }
    _tile_loadconfig(&config);
    asm volatile("" ::: "memory");  // the tile intrinsics do not declare that they read memory
    for (int64_t r = 0; r < rows; r += 2 * tile_rows) {
      const bool tall = rows - r > tile_rows;
      const auto run =
          tall ? (pair ? tiles<2, 2> : tiles<2, 1>) : (pair ? tiles<1, 2> : tiles<1, 1>);
      run(out, x.q + r * x.ld, x.ld, panels[0], panels[1], x.padded);
      const int64_t n = rows - r < 2 * tile_rows ? rows - r : 2 * tile_rows;
      for (int64_t i = 0; i < n; ++i)
        for (int64_t c = 0; c < (pair ? 2 : 1); ++c)
          put(acc + (r + i) * ld + (p - first + c) * quant_panel,
              load_raw<vi>(out[i / tile_rows * 2 + c] + i % tile_rows * 16), x.scales[r + i],
              w.scales(p + c));
    }
    _tile_release();
  }
}

inline void multiply(float* acc, int64_t ld, const QuantRows& x, const std::byte* packed,
                     int64_t first, int64_t last, int64_t rows, std::byte* scratch) {
  const Matrix w{packed, QuantLayout(*reinterpret_cast<const QuantHeader*>(packed))};
  if (x.few)
    multiply_dots(acc, ld, x, w, first, last, rows);
  else
    multiply_tiles(acc, ld, x, w, first, last, rows, reinterpret_cast<int8_t*>(scratch));
}

constexpr QuantKernel kernel() {
  return {.name = "AMX-INT8 and AVX512-VNNI",
          .few_flip = dots_flip,
          .flip = 0,
          .quantise = quantise_rows,
          .multiply = multiply};
}

}  // namespace hearth::HEARTH_ISA::quant
