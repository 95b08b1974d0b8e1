// bf16 gemm() with TDPBF16PS: 32 x 32 of c in four tile registers. A tile of a is 16 rows of 32 k;
// a tile of b is 16 pairs of k by 16 columns, which is the panel of pairs that gemm_pack.h writes.
#pragma once

#include <algorithm>

#include "cpu/isa/gemm_outer.h"

namespace hearth::HEARTH_ISA {

namespace amx_tiles {

constexpr int side = 32;    // rows of a panel of a, columns of a panel of b
constexpr int k_tile = 32;  // k in a tile
constexpr int pairs = k_tile / 2;
static_assert(lanes == pairs && side == few_tile);

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Packs 16 rows of 32 k, or the n rows of kn that exist, with zeros elsewhere.
inline void pack_tile(float* dst, const bf16* from, const GemmOperand& operand, int64_t n,
                      int64_t kn) {
  const int64_t ld = operand.ld;
  vf m[lanes];
  if (operand.k_major && n == lanes && kn == k_tile) {
#pragma GCC unroll 16
    for (int i = 0; i < pairs; ++i) m[i] = AsPair::across(from + 2 * i * ld, ld);
  } else if (operand.k_major) {
    for (int i = 0; i < pairs; ++i) {
      const int64_t pair = kn - 2 * i < 2 ? kn - 2 * i : 2;
      m[i] = n > 0 && pair > 0 ? AsPair::across_partial(from + 2 * i * ld, ld, n, pair) : zero();
    }
  } else {
    for (int i = 0; i < lanes; ++i) {
      if (i >= n)
        m[i] = zero();
      else if (kn == k_tile)
        m[i] = AsPair::along(from + i * ld);
      else
        m[i] = AsPair::along_partial(from + i * ld, kn);
      prefetch(from, (i + side) * ld);
    }
  }
  if (operand.k_major) transpose(m);
#pragma GCC unroll 16
  for (int i = 0; i < lanes; ++i) store(dst + i * pairs, m[i]);
}

// Panels of 32 rows: for each 32 k, the rows in order, 64 bytes each.
inline void pack_rows(void* packed, const GemmOperand& operand, int64_t count, int64_t k) {
  const bf16* src = static_cast<const bf16*>(operand.data);
  const int64_t k_tiles = (k + k_tile - 1) / k_tile, row_tiles = (count + side - 1) / side * 2;
  const auto tile = [&](int64_t r, int64_t t) {  // tile r of 16 rows, t of 32 k
    const int64_t p = r * lanes, k0 = t * k_tile;
    float* dst = static_cast<float*>(packed) + ((r / 2 * k_tiles + t) * 2 + r % 2) * lanes * pairs;
    pack_tile(dst, src + (operand.k_major ? k0 * operand.ld + p : p * operand.ld + k0), operand,
              count - p < lanes ? count - p : lanes, k - k0 < k_tile ? k - k0 : k_tile);
  };
  if (operand.k_major) {
    for (int64_t t = 0; t < k_tiles; ++t)
      for (int64_t r = 0; r < row_tiles; ++r) tile(r, t);
  } else {
    for (int64_t r = 0; r < row_tiles; ++r)
      for (int64_t t = 0; t < k_tiles; ++t) tile(r, t);
  }
}

// Tile registers 0..3 hold c, 4 and 5 hold a, 6 and 7 hold b. R, C: tiles of rows and columns.
template <int R, int C>
inline void micro(float* acc, int64_t ld, const char* a, const char* b, int64_t k_tiles,
                  bool first) {
  const int64_t stride = ld * 4;
  if (first) {
    _tile_zero(0);
    if (C == 2) _tile_zero(1);
    if (R == 2) _tile_zero(2);
    if (R == 2 && C == 2) _tile_zero(3);
  } else {
    _tile_loadd(0, acc, stride);
    if (C == 2) _tile_loadd(1, acc + 16, stride);
    if (R == 2) _tile_loadd(2, acc + 16 * ld, stride);
    if (R == 2 && C == 2) _tile_loadd(3, acc + 16 * ld + 16, stride);
  }
  for (int64_t t = 0; t < k_tiles; ++t, a += 2048, b += 2048) {
    _tile_loadd(6, b, 128);
    _tile_loadd(4, a, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (C == 2) {
      _tile_loadd(7, b + 64, 128);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (R == 2) {
      _tile_loadd(5, a + 1024, 64);
      _tile_dpbf16ps(2, 5, 6);
      if (C == 2) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, acc, stride);
  if (C == 2) _tile_stored(1, acc + 16, stride);
  if (R == 2) _tile_stored(2, acc + 16 * ld, stride);
  if (R == 2 && C == 2) _tile_stored(3, acc + 16 * ld + 16, stride);
}

inline void multiply(float* acc, int64_t ld, const void* a, const void* b, int64_t rows,
                     int64_t cols, int64_t k, bool first) {
  const TileConfig config;
  _tile_loadconfig(&config);
  asm volatile("" ::: "memory");  // the tile intrinsics do not declare that they read memory
  const int64_t k_tiles = (k + k_tile - 1) / k_tile, panel = side * k_tile * 2 * k_tiles;
  for (int64_t j = 0; j < cols; j += side) {
    const char* pb = static_cast<const char*>(b) + j / side * panel;
    for (int64_t i = 0; i < rows; i += side) {
      const char* pa = static_cast<const char*>(a) + i / side * panel;
      const bool tall = rows - i > 16, wide = cols - j > 16;
      const auto run =
          tall ? (wide ? micro<2, 2> : micro<2, 1>) : (wide ? micro<1, 2> : micro<1, 1>);
      run(acc + i * ld + j, ld, pa, pb, k_tiles, first);
    }
  }
  asm volatile("" ::: "memory");
  _tile_release();
}

// --- few rows of c ---
// A tile product sums in the same order whichever operand comes first, so c may be computed
// transposed: unpacked tiles of b, 16 columns of c by 32 k, times packed rows of a.
constexpr int few_rows = 64;
constexpr int64_t ahead = 4;

inline int64_t few_bytes(int64_t rows, int64_t k) {
  return (rows + side - 1) / side * side * ((k + k_tile - 1) / k_tile * k_tile) * 2;
}

// Copies `rows` rows of b, `count` elements each, into tiles of 64-byte rows, padded with zeros.
inline void copy_edge(char (&edge)[2][1024], const bf16* b, int64_t ldb, int64_t rows,
                      int64_t count) {
  std::memset(edge, 0, sizeof edge);
  for (int64_t i = 0; i < rows; ++i) std::memcpy(edge[0] + i * 64, b + i * ldb, size_t(count) * 2);
  asm volatile("" ::: "memory");
}

// R tiles of columns of c by C tiles of its rows. Prefetches the rows of b that come next.
template <int R, int C>
inline void micro_few(float* acc, int64_t ld, const char* a, const bf16* b, int64_t ldb,
                      int64_t cols, int64_t k) {
  alignas(64) char edge[2][1024];
  alignas(64) float out[16 * lanes];
  const int64_t stride = ldb * 2;
  _tile_zero(0);
  if (C == 2) _tile_zero(1);
  if (R == 2) _tile_zero(2);
  if (R == 2 && C == 2) _tile_zero(3);
  for (int64_t t = 0; t * k_tile < k; ++t, a += 2048, b += k_tile) {
    const int64_t left = k - t * k_tile;
    const char* from[2] = {reinterpret_cast<const char*>(b),
                           reinterpret_cast<const char*>(b + 16 * ldb)};
    int64_t step = stride;
    if (left < k_tile || cols < 16 * R) {
      copy_edge(edge, b, ldb, std::min<int64_t>(16 * R, cols), std::min<int64_t>(left, k_tile));
      from[0] = edge[0], from[1] = edge[1], step = 64;
    }
    _tile_loadd(4, from[0], step);
    _tile_loadd(6, a, 128);
    _tile_dpbf16ps(0, 4, 6);
    if (C == 2) {
      _tile_loadd(7, a + 64, 128);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (R == 2) {
      _tile_loadd(5, from[1], step);
      _tile_dpbf16ps(2, 5, 6);
      if (C == 2) _tile_dpbf16ps(3, 5, 7);
    }
    // The data `ahead` tiles later, in these rows or the next ones.
    const int64_t later = left > ahead * k_tile ? ahead * k_tile : side * ldb - k + ahead * k_tile;
#pragma GCC unroll 32
    for (int i = 0; i < 16 * R; ++i) prefetch(b, later + i * ldb);
  }
  const auto put = [&](int row, int col) {
    asm volatile("" ::: "memory");
    vf m[lanes];
    for (int i = 0; i < lanes; ++i) m[i] = load(out + i * lanes);
    transpose(m);
    for (int i = 0; i < lanes; ++i) store(acc + (row + i) * ld + col, m[i]);
  };
  _tile_stored(0, out, 64);
  put(0, 0);
  if (C == 2) {
    _tile_stored(1, out, 64);
    put(16, 0);
  }
  if (R == 2) {
    _tile_stored(2, out, 64);
    put(0, 16);
  }
  if (R == 2 && C == 2) {
    _tile_stored(3, out, 64);
    put(16, 16);
  }
}

inline void multiply_few(float* acc, int64_t ld, const void* a, const GemmOperand& operand,
                         int64_t rows, int64_t cols, int64_t k) {
  const TileConfig config;
  _tile_loadconfig(&config);
  asm volatile("" ::: "memory");
  const bf16* b = static_cast<const bf16*>(operand.data);
  const int64_t k_tiles = (k + k_tile - 1) / k_tile, panel = side * k_tile * 2 * k_tiles;
  for (int64_t j = 0; j < cols; j += side) {
    for (int64_t i = 0; i < rows; i += side) {
      const char* pa = static_cast<const char*>(a) + i / side * panel;
      const bool tall = rows - i > 16, wide = cols - j > 16;
      const auto run = wide ? (tall ? micro_few<2, 2> : micro_few<2, 1>)
                            : (tall ? micro_few<1, 2> : micro_few<1, 1>);
      run(acc + i * ld + j, ld, pa, b + j * operand.ld, operand.ld, cols - j, k);
    }
  }
  asm volatile("" ::: "memory");
  _tile_release();
}

}  // namespace amx_tiles

constexpr GemmKernel bf16_kernel() {
  return {.mr = amx_tiles::side,
          .nr = amx_tiles::side,
          .k_block = 1024,
          .k_unit = amx_tiles::k_tile,
          .element_bytes = 2,
          .tile = 196608,
          .strip = 512 << 10,
          .pack_a = amx_tiles::pack_rows,
          .pack_b = pack<amx_tiles::side, AsPair, amx_tiles::k_tile>,
          .multiply = amx_tiles::multiply,
          .few = {.rows = amx_tiles::few_rows,
                  .packed_bytes = amx_tiles::few_bytes,
                  .pack = pack<amx_tiles::side, AsPair, amx_tiles::k_tile>,
                  .multiply = amx_tiles::multiply_few}};
}

}  // namespace hearth::HEARTH_ISA
