// A few rows of c against b as it lies in memory, (n, k): nothing of b is copied, so that a product
// whose time is the reading of b takes no longer than that. A square of b is turned in registers
// and meets the same chain of steps as in gemm_outer.h: the bits of a row are the same either way.
#pragma once

#include "cpu/isa/gemm_pack.h"
#include "cpu/isa/gemm_table.h"
#include "cpu/isa/simd.h"

namespace hearth::HEARTH_ISA {

// Block is how many steps of k are summed by themselves: what the outer-product kernel packs.
template <class Read, class Step, int Block>
struct Few {
  using Source = typename Read::Source;
  static constexpr int most = 8;
  static constexpr int64_t ahead = 4;  // cache lines of a row
  static_assert(Block % lanes == 0 && few_tile % (2 * lanes) == 0);

  // Rows of dwords, one after the other, each of whole vectors.
  static int64_t row_floats(int64_t k) {
    return (k + Read::step * lanes - 1) / (Read::step * lanes) * lanes;
  }
  static void pack_rows(void* packed, const GemmOperand& a, int64_t count, int64_t k) {
    const Source* src = static_cast<const Source*>(a.data);
    float* dst = static_cast<float*>(packed);
    constexpr int64_t vector = Read::step * lanes;
    for (int64_t r = 0; r < count; ++r, src += a.ld)
      for (int64_t i = 0; i < k; i += vector, dst += lanes)
        store(dst, k - i >= vector ? Read::along(src + i) : Read::along_partial(src + i, k - i));
  }

  // `lanes` rows of b from one k on, k lying along the vectors.
  HEARTH_INLINE static void read(vf (&m)[lanes], const Source* b, int64_t ldb, int64_t later,
                                 bool line) {
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) {
      m[i] = Read::along(b + i * ldb);
      if (line) prefetch(b, later + i * ldb);
    }
  }
  static void read_partial(vf (&m)[lanes], const Source* b, int64_t ldb, int64_t rows, int64_t k) {
    for (int i = 0; i < lanes; ++i) {
      if (i >= rows)
        m[i] = zero();
      else
        m[i] = k >= Read::step * lanes ? Read::along(b + i * ldb)
                                       : Read::along_partial(b + i * ldb, k);
    }
  }

  // R rows and up to U vectors of columns; U gives the chains of one row something to overlap.
  template <int R, int U>
  static void columns(float* acc, int64_t ld, const float* a, const Source* b, int64_t ldb,
                      int64_t cols, int64_t k) {
    constexpr int64_t line = 64 / int64_t(sizeof(Source)) / Read::step;  // steps of a cache line
    const int64_t steps = (k + Read::step - 1) / Read::step, a_ld = row_floats(k);
    const bool whole = cols >= U * lanes;
    vf sum[U][R] = {};
    for (int64_t begin = 0; begin < steps; begin += Block) {
      const int64_t end = begin + Block < steps ? begin + Block : steps;
      vf c[U][R] = {};
      for (int64_t s = begin; s < end; s += lanes) {
        const int64_t n = end - s < lanes ? end - s : lanes;
        const float* as = a + s;
        // What is asked for: a few lines on in these rows, or in the next ones.
        const int64_t on = ahead * line * Read::step;
        const int64_t later = s * Read::step + on < k ? on : U * lanes * ldb - k + on;
#pragma GCC unroll 4
        for (int u = 0; u < U; ++u) {
          vf m[lanes];
          const Source* from = b + u * lanes * ldb + s * Read::step;
          if (whole && k - s * Read::step >= lanes * Read::step)
            read(m, from, ldb, later, s % line == 0);
          else
            read_partial(m, from, ldb, cols - u * lanes, k - s * Read::step);
          transpose(m);
          if (n == lanes) {
#pragma GCC unroll 16
            for (int t = 0; t < lanes; ++t)
#pragma GCC unroll 8
              for (int r = 0; r < R; ++r)
                c[u][r] = Step::add(c[u][r], broadcast(as[r * a_ld + t]), m[t]);
          } else {
            float square[lanes * lanes];
            for (int t = 0; t < lanes; ++t) store(square + t * lanes, m[t]);
            for (int64_t t = 0; t < n; ++t)
              for (int r = 0; r < R; ++r)
                c[u][r] = Step::add(c[u][r], broadcast(as[r * a_ld + t]), load(square + t * lanes));
          }
        }
      }
      for (int u = 0; u < U; ++u)
        for (int r = 0; r < R; ++r) sum[u][r] = begin == 0 ? c[u][r] : sum[u][r] + c[u][r];
    }
    for (int u = 0; u < U; ++u)
      for (int r = 0; r < R; ++r) store(acc + r * ld + u * lanes, sum[u][r]);
  }

  template <int R>
  static void all_columns(float* acc, int64_t ld, const float* a, const Source* b, int64_t ldb,
                          int64_t cols, int64_t k) {
    constexpr int U = R <= 4 ? 2 : 1;
    for (int64_t j = 0; j < cols; j += U * lanes)
      columns<R, U>(acc + j, ld, a, b + j * ldb, ldb, cols - j, k);
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
