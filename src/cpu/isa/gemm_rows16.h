// A few rows of c against b in its own layout, (n, k): b is not packed, so the product takes no
// longer than reading b. Rows of b are transposed in registers and summed in the order of
// gemm_outer.h, so a row of c has the same bits either way.
#pragma once

#include "cpu/isa/gemm_pack.h"
#include "cpu/isa/gemm_table.h"
#include "cpu/isa/simd.h"

namespace hearth::HEARTH_ISA {

// How a dword of b is multiplied with a: as it is, in one part.
template <class Read>
struct Plain {
  using Source = typename Read::Source;
  using ReadA = Read;
  static constexpr int step = Read::step, parts = 1;  // k per dword of b, dwords of a for each
  HEARTH_INLINE static vf part(vf pair, int) { return pair; }
};

// A pair of bf16 that is widened to two floats. Transposing pairs takes half the shuffles of
// transposing floats, and widening a pair afterwards takes a shift and a mask but no shuffle.
struct Widened {
  using Source = bf16;
  using ReadA = AsFloat<bf16>;
  static constexpr int step = 2, parts = 2;
  HEARTH_INLINE static vf part(vf pair, int i) {
    return from_bits(i == 0 ? bits(pair) << 16 : bits(pair) & 0xffff0000u);
  }
};

// Sums that fit in registers beside the transposed slab.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int few_sums = 16;
#else
constexpr int few_sums = 8;
#endif

// Block: how many k are summed separately, as in the outer-product kernel.
template <class B, class Step, int Block>
struct Few {
  using Source = typename B::Source;
  using ReadA = typename B::ReadA;
  static constexpr int most = 8;
  static constexpr int line = 16;      // dwords in a cache line
  static constexpr int64_t ahead = 4;  // prefetch distance, in cache lines of a row
  static constexpr int slabs = line / slab;
  static constexpr int slab_k = slab * B::step, line_k = line * B::step;
  static constexpr int slab_a = slab * B::parts;  // dwords of a that multiply a slab
  static_assert(Block % slab_k == 0);

  // Packed a: rows of dwords, each padded to whole vectors.
  static int64_t row_floats(int64_t k) {
    return (k + ReadA::step * lanes - 1) / (ReadA::step * lanes) * lanes;
  }
  static void pack_rows(void* packed, const GemmOperand& a, int64_t count, int64_t k) {
    const Source* src = static_cast<const Source*>(a.data);
    float* dst = static_cast<float*>(packed);
    constexpr int64_t vector = ReadA::step * lanes;
    for (int64_t r = 0; r < count; ++r, src += a.ld)
      for (int64_t i = 0; i < k; i += vector, dst += lanes)
        store(dst, k - i >= vector ? ReadA::along(src + i) : ReadA::along_partial(src + i, k - i));
  }

  // R rows of a by U vectors of columns; U > 1 lets the sums of one row overlap.
  template <int R, int U>
  struct Tile {
    const float* a;
    int64_t a_ld;
    const Source* b;
    int64_t ldb, cols, k;
    vf c[U][R];

    // Multiplies n dwords of the transposed slab of columns u that starts at k = at with a.
    HEARTH_INLINE void meet(int u, const vf (&m)[slab], int64_t at, int n) {
      const float* from = a + at / ReadA::step;
      // Without this the compiler would keep the values it broadcast for the first u, which needs
      // more registers than there are; where a load broadcasts, loading again is free.
      if constexpr (R > 1 && lanes > 4) asm volatile("" : "+r"(from));
#pragma GCC unroll 16
      for (int i = 0; i < slab_a; ++i) {
        if (i >= n) break;
        const vf part = B::part(m[i / B::parts], i % B::parts);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
          c[u][r] = Step::add(c[u][r], broadcast(from[r * a_ld + i]), part);
      }
    }

    // One cache line of every row; prefetches the lines at offset `later`.
    HEARTH_INLINE void whole_line(int64_t at, int64_t later) {
#pragma GCC unroll 1
      for (int h = 0; h < slabs; ++h)
#pragma GCC unroll 8
        for (int u = 0; u < U; ++u) {
          vf m[slab];
          const Source* from = b + u * lanes * ldb + at;
          turn(m, from + h * slab_k, ldb * int64_t(sizeof(Source)));
#pragma GCC unroll 16
          for (int i = h; i < lanes; i += slabs) prefetch(from, later + i * ldb);
          meet(u, m, at + h * slab_k, slab_a);
        }
    }

    // One slab at an edge, with fewer columns or fewer k.
    [[gnu::noinline]] void edge(int64_t at) {
      const int64_t here = k - at < slab_k ? k - at : slab_k;
      const int n = int((here + ReadA::step - 1) / ReadA::step);
      for (int u = 0; u < U && u * lanes < cols; ++u) {
        float square[lanes][slab] = {};
        for (int i = 0; i < lanes && u * lanes + i < cols; ++i)
          std::memcpy(square[i], b + (u * lanes + i) * ldb + at, size_t(here) * sizeof(Source));
        vf m[slab];
        turn(m, square, slab * 4);
        meet(u, m, at, n);
      }
    }

    HEARTH_INLINE void block(int64_t begin, int64_t end) {
      for (int u = 0; u < U; ++u)
        for (int r = 0; r < R; ++r) c[u][r] = zero();
      int64_t at = begin;
      if (cols >= U * lanes)
        for (; at + line_k <= end; at += line_k) {
          // A few lines further on in these rows, or in the next ones.
          const int64_t on = ahead * line_k;
          whole_line(at, at + on < k ? on : U * lanes * ldb - k + on);
        }
      for (; at < end; at += slab_k) edge(at);
    }

    void run(float* acc, int64_t ld) {
      vf sum[U][R] = {};
      for (int64_t begin = 0; begin < k; begin += Block) {
        block(begin, begin + Block < k ? begin + Block : k);
        for (int u = 0; u < U; ++u)
          for (int r = 0; r < R; ++r) sum[u][r] = begin == 0 ? c[u][r] : sum[u][r] + c[u][r];
      }
      for (int u = 0; u < U; ++u)
        for (int r = 0; r < R; ++r) store(acc + r * ld + u * lanes, sum[u][r]);
    }
  };

  // Vectors of columns summed at a time: as many as registers hold sums for, within few_tile.
  static constexpr int vectors(int rows) {
    int u = 1;
    while (2 * u * lanes <= few_tile && 2 * u * rows <= few_sums) u *= 2;
    return u;
  }

  template <int R>
  static void all_columns(float* acc, int64_t ld, const float* a, const Source* b, int64_t ldb,
                          int64_t cols, int64_t k) {
    constexpr int U = vectors(R);
    for (int64_t j = 0; j < cols; j += U * lanes)
      Tile<R, U>{a, row_floats(k), b + j * ldb, ldb, cols - j, k, {}}.run(acc + j, ld);
  }

  // GemmFew::multiply
  static void multiply(float* acc, int64_t ld, const void* a, const GemmOperand& b, int64_t rows,
                       int64_t cols, int64_t k) {
    constexpr decltype(&all_columns<1>) by_rows[most] = {
        all_columns<1>, all_columns<2>, all_columns<3>, all_columns<4>,
        all_columns<5>, all_columns<6>, all_columns<7>, all_columns<8>};
    by_rows[rows - 1](acc, ld, static_cast<const float*>(a), static_cast<const Source*>(b.data),
                      b.ld, cols, k);
  }

  static int64_t packed_bytes(int64_t rows, int64_t k) { return rows * row_floats(k) * 4; }

  static constexpr GemmFew kernel() {
    return {.rows = most, .packed_bytes = packed_bytes, .pack = pack_rows, .multiply = multiply};
  }
};

}  // namespace hearth::HEARTH_ISA
