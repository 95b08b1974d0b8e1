// bf16 gemm() with BFMMLA, which adds a (2 x 4) by (4 x 2) product to a 2 x 2 block of c. Panels
// hold, for each 4 k, the 4 elements of each vector in turn.
#pragma once

#include "cpu/isa/gemm_outer.h"

namespace hearth::HEARTH_ISA {

namespace bfmmla {

constexpr int mr = 8, nr = 12, quad = 4;
constexpr int64_t k_block = 1024;  // 24 KiB of a panel of b

// 4 consecutive k of vectors p .. p + P, with zeros where there are none.
template <int P>
inline void pack_partial(uint16_t* dst, const bf16* src, const GemmOperand& operand, int64_t count,
                         int64_t kn) {
  for (int p = 0; p < P; ++p)
    for (int i = 0; i < quad; ++i) {
      const int64_t at = operand.k_major ? i * operand.ld + p : p * operand.ld + i;
      dst[p * quad + i] = p < count && i < kn ? src[at].bits : uint16_t(0);
    }
}

template <int P>
inline void pack_quad(uint16_t* dst, const bf16* src, const GemmOperand& operand) {
  const int64_t ld = operand.ld;
  if (!operand.k_major) {
#pragma GCC unroll 12
    for (int p = 0; p < P; ++p) std::memcpy(dst + p * quad, src + p * ld, quad * 2);
    return;
  }
#pragma GCC unroll 3
  for (int p = 0; p < P; p += 4) {  // transposes four rows of k into four vectors of four
    const uint16_t* from = &src[p].bits;
    const uint16x4_t k0 = vld1_u16(from), k1 = vld1_u16(from + ld);
    const uint16x4_t k2 = vld1_u16(from + 2 * ld), k3 = vld1_u16(from + 3 * ld);
    const uint16x4x4_t rows = {{k0, k1, k2, k3}};  // clang's vst4 is a macro: no braces inside
    vst4_u16(dst + p * quad, rows);
  }
}

template <int P>
void pack_quads(void* packed, const GemmOperand& operand, int64_t count, int64_t k) {
  const bf16* src = static_cast<const bf16*>(operand.data);
  const int64_t quads = (k + quad - 1) / quad;
  const auto one = [&](int64_t p, int64_t q) {
    uint16_t* dst = static_cast<uint16_t*>(packed) + (p * quads + q * P) * quad;
    const bf16* from =
        src + (operand.k_major ? q * quad * operand.ld + p : p * operand.ld + q * quad);
    if (count - p >= P && k - q * quad >= quad)
      pack_quad<P>(dst, from, operand);
    else
      pack_partial<P>(dst, from, operand, count - p, k - q * quad);
  };
  if (operand.k_major) {
    for (int64_t q = 0; q < quads; ++q)
      for (int64_t p = 0; p < count; p += P) one(p, q);
  } else {
    for (int64_t p = 0; p < count; p += P)
      for (int64_t q = 0; q < quads; ++q) one(p, q);
  }
}

// R pairs of rows of c by all its columns; a register is the block {c00, c01, c10, c11}.
template <int R>
void micro(float* acc, int64_t ld, const bfloat16_t* a, const bfloat16_t* b, int64_t quads,
           bool first) {
  constexpr int C = nr / 2;
  float32x4_t c[R][C] = {};
  for (int64_t q = 0; q < quads; ++q, a += mr * quad, b += nr * quad) {
    bfloat16x8_t bv[C];
#pragma GCC unroll 6
    for (int j = 0; j < C; ++j) bv[j] = vld1q_bf16(b + j * 2 * quad);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const bfloat16x8_t av = vld1q_bf16(a + r * 2 * quad);
#pragma GCC unroll 6
      for (int j = 0; j < C; ++j) c[r][j] = vbfmmlaq_f32(c[r][j], av, bv[j]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
    for (int j = 0; j < C; j += 2) {
      const float64x2_t left = vreinterpretq_f64_f32(c[r][j]);
      const float64x2_t right = vreinterpretq_f64_f32(c[r][j + 1]);
      const float32x4_t rows[2] = {vreinterpretq_f32_f64(vzip1q_f64(left, right)),
                                   vreinterpretq_f32_f64(vzip2q_f64(left, right))};
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        float* to = acc + (2 * r + i) * ld + 2 * j;
        vst1q_f32(to, first ? rows[i] : vaddq_f32(vld1q_f32(to), rows[i]));
      }
    }
  }
}

inline void multiply(float* acc, int64_t ld, const void* a, const void* b, int64_t rows,
                     int64_t cols, int64_t k, bool first) {
  const int64_t quads = (k + quad - 1) / quad;
  for (int64_t j = 0; j < cols; j += nr) {
    const bfloat16_t* pb = static_cast<const bfloat16_t*>(b) + j * quads * quad;
    for (int64_t i = 0; i < rows; i += mr) {
      const bfloat16_t* pa = static_cast<const bfloat16_t*>(a) + i * quads * quad;
      const int64_t left = rows - i;
      const auto run = left > 6 ? micro<4> : left > 4 ? micro<3> : left > 2 ? micro<2> : micro<1>;
      run(acc + i * ld + j, ld, pa, pb, quads, first);
    }
  }
}

// --- few rows of c, b unpacked ---
inline int64_t few_bytes(int64_t, int64_t k) { return (k + quad - 1) / quad * quad * mr * 2; }

// 8 k of two rows of b as two registers of two rows of 4.
struct Quads {
  bfloat16x8_t low, high;
};
HEARTH_INLINE Quads quads_of(const uint16_t* top, const uint16_t* bottom) {
  const uint64x2_t t = vreinterpretq_u64_u16(vld1q_u16(top));
  const uint64x2_t b = vreinterpretq_u64_u16(vld1q_u16(bottom));
  return {vreinterpretq_bf16_u64(vzip1q_u64(t, b)), vreinterpretq_bf16_u64(vzip2q_u64(t, b))};
}

// R pairs of rows by C pairs of columns of c, summed in the same order and blocks of k as micro().
template <int R, int C>
struct FewTile {
  const bfloat16_t* a;
  const bf16* b;
  int64_t ldb, cols, k;
  float32x4_t c[R][C];

  HEARTH_INLINE void meet(int j, const bfloat16_t* pa, bfloat16x8_t q) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) c[r][j] = vbfmmlaq_f32(c[r][j], vld1q_bf16(pa + r * 8), q);
  }

  // 8 k of all columns, starting at k = at.
  HEARTH_INLINE void whole(int64_t at) {
    const bfloat16_t* pa = a + at * mr;
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      const uint16_t* from = &b[2 * j * ldb + at].bits;
      const Quads q = quads_of(from, from + ldb);
      meet(j, pa, q.low);
      meet(j, pa + mr * quad, q.high);
    }
  }

  // The same for fewer columns, or for only n k.
  [[gnu::noinline]] void edge(int64_t at, int64_t n) {
    const bfloat16_t* pa = a + at * mr;
    for (int j = 0; j < C && 2 * j < cols; ++j) {
      uint16_t rows[2][2 * quad] = {};
      for (int r = 0; r < 2 && 2 * j + r < cols; ++r)
        std::memcpy(rows[r], b + (2 * j + r) * ldb + at, size_t(n) * 2);
      const Quads q = quads_of(rows[0], rows[1]);
      meet(j, pa, q.low);
      if (n > quad) meet(j, pa + mr * quad, q.high);
    }
  }

  HEARTH_INLINE void block(int64_t begin, int64_t end) {
    for (int r = 0; r < R; ++r)
      for (int j = 0; j < C; ++j) c[r][j] = vdupq_n_f32(0);
    int64_t at = begin;
    if (cols >= 2 * C)
      for (; at + 2 * quad <= end; at += 2 * quad) whole(at);
    for (; at < end; at += 2 * quad) edge(at, end - at < 2 * quad ? end - at : 2 * quad);
  }

  void run(float* acc, int64_t ld) {
    float32x4_t sum[R][C] = {};
    for (int64_t begin = 0; begin < k; begin += k_block) {
      block(begin, begin + k_block < k ? begin + k_block : k);
      for (int r = 0; r < R; ++r)
        for (int j = 0; j < C; ++j)
          sum[r][j] = begin == 0 ? c[r][j] : vaddq_f32(sum[r][j], c[r][j]);
    }
    for (int r = 0; r < R; ++r)
      for (int j = 0; j < C; ++j) {
        vst1_f32(acc + 2 * r * ld + 2 * j, vget_low_f32(sum[r][j]));
        vst1_f32(acc + (2 * r + 1) * ld + 2 * j, vget_high_f32(sum[r][j]));
      }
  }
};

// One or two pairs of rows take more columns: too few independent sums would wait for each other.
template <int R>
inline void columns_few(float* acc, int64_t ld, const bfloat16_t* a, const bf16* b, int64_t ldb,
                        int64_t cols, int64_t k) {
  constexpr int C = R <= 2 ? 8 : 4;
  for (int64_t j = 0; j < cols; j += 2 * C)
    FewTile<R, C>{a, b + j * ldb, ldb, cols - j, k, {}}.run(acc + j, ld);
}

inline void multiply_few(float* acc, int64_t ld, const void* a, const GemmOperand& b, int64_t rows,
                         int64_t cols, int64_t k) {
  const auto run = rows > 6   ? columns_few<4>
                   : rows > 4 ? columns_few<3>
                   : rows > 2 ? columns_few<2>
                              : columns_few<1>;
  run(acc, ld, static_cast<const bfloat16_t*>(a), static_cast<const bf16*>(b.data), b.ld, cols, k);
}

}  // namespace bfmmla

constexpr GemmKernel bf16_kernel() {
  return {.mr = bfmmla::mr,
          .nr = bfmmla::nr,
          .k_block = bfmmla::k_block,
          .k_unit = bfmmla::quad,
          .element_bytes = 2,
          .tile = 131072,
          .strip = 256 << 10,
          .pack_a = bfmmla::pack_quads<bfmmla::mr>,
          .pack_b = bfmmla::pack_quads<bfmmla::nr>,
          .multiply = bfmmla::multiply,
          .few = {.rows = bfmmla::mr,
                  .packed_bytes = bfmmla::few_bytes,
                  .pack = bfmmla::pack_quads<bfmmla::mr>,
                  .multiply = bfmmla::multiply_few}};
}

}  // namespace hearth::HEARTH_ISA
