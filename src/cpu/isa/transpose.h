// transpose(): a square of lanes x lanes dwords, in registers. turn(): loads a slab transposed.
#pragma once

#include "cpu/isa/simd.h"

namespace hearth::HEARTH_ISA {

// Each step is one shuffle instruction per vector: pairs of dwords, pairs of qwords, then halves.
#if defined(__AVX512F__)
HEARTH_INLINE void transpose(vf (&m)[lanes]) {
  vf t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 2) {
    t[i] = (vf)_mm512_unpacklo_ps((__m512)m[i], (__m512)m[i + 1]);
    t[i + 1] = (vf)_mm512_unpackhi_ps((__m512)m[i], (__m512)m[i + 1]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 4) {
    m[i] = (vf)_mm512_unpacklo_pd((__m512d)t[i], (__m512d)t[i + 2]);
    m[i + 1] = (vf)_mm512_unpackhi_pd((__m512d)t[i], (__m512d)t[i + 2]);
    m[i + 2] = (vf)_mm512_unpacklo_pd((__m512d)t[i + 1], (__m512d)t[i + 3]);
    m[i + 3] = (vf)_mm512_unpackhi_pd((__m512d)t[i + 1], (__m512d)t[i + 3]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 4; ++i) {
    const __m512 a = (__m512)m[i], b = (__m512)m[i + 4], c = (__m512)m[i + 8],
                 d = (__m512)m[i + 12];
    const __m512 ab0 = _mm512_shuffle_f32x4(a, b, 0x88), ab1 = _mm512_shuffle_f32x4(a, b, 0xdd);
    const __m512 cd0 = _mm512_shuffle_f32x4(c, d, 0x88), cd1 = _mm512_shuffle_f32x4(c, d, 0xdd);
    t[i] = (vf)_mm512_shuffle_f32x4(ab0, cd0, 0x88);
    t[i + 4] = (vf)_mm512_shuffle_f32x4(ab1, cd1, 0x88);
    t[i + 8] = (vf)_mm512_shuffle_f32x4(ab0, cd0, 0xdd);
    t[i + 12] = (vf)_mm512_shuffle_f32x4(ab1, cd1, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) m[i] = t[i];
}
#elif defined(__AVX2__)
HEARTH_INLINE void transpose(vf (&m)[lanes]) {
  vf t[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i += 2) {
    t[i] = (vf)_mm256_unpacklo_ps((__m256)m[i], (__m256)m[i + 1]);
    t[i + 1] = (vf)_mm256_unpackhi_ps((__m256)m[i], (__m256)m[i + 1]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; i += 4) {
    m[i] = (vf)_mm256_unpacklo_pd((__m256d)t[i], (__m256d)t[i + 2]);
    m[i + 1] = (vf)_mm256_unpackhi_pd((__m256d)t[i], (__m256d)t[i + 2]);
    m[i + 2] = (vf)_mm256_unpacklo_pd((__m256d)t[i + 1], (__m256d)t[i + 3]);
    m[i + 3] = (vf)_mm256_unpackhi_pd((__m256d)t[i + 1], (__m256d)t[i + 3]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) {
    t[i] = (vf)_mm256_permute2f128_ps((__m256)m[i], (__m256)m[i + 4], 0x20);
    t[i + 4] = (vf)_mm256_permute2f128_ps((__m256)m[i], (__m256)m[i + 4], 0x31);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) m[i] = t[i];
}
#else
HEARTH_INLINE void transpose(vf (&m)[lanes]) {
  const vf t0 = __builtin_shufflevector(m[0], m[1], 0, 4, 1, 5);
  const vf t1 = __builtin_shufflevector(m[0], m[1], 2, 6, 3, 7);
  const vf t2 = __builtin_shufflevector(m[2], m[3], 0, 4, 1, 5);
  const vf t3 = __builtin_shufflevector(m[2], m[3], 2, 6, 3, 7);
  m[0] = __builtin_shufflevector(t0, t2, 0, 1, 4, 5);
  m[1] = __builtin_shufflevector(t0, t2, 2, 3, 6, 7);
  m[2] = __builtin_shufflevector(t1, t3, 0, 1, 4, 5);
  m[3] = __builtin_shufflevector(t1, t3, 2, 3, 6, 7);
}
#endif

// Dwords of a row that turn() reads at a time.
#if defined(__AVX512F__)
constexpr int slab = 8;
#else
constexpr int slab = 4;
#endif

// m[t] becomes dword t of `lanes` rows that lie `stride` bytes apart. Rows are combined into
// vectors by the loads, so fewer shuffles remain than in transpose(): shuffles compete for one
// port.
HEARTH_INLINE void turn(vf (&m)[slab], const void* rows, int64_t stride) {
  const char* p = static_cast<const char*>(rows);
#if defined(__AVX512F__)
  const auto row = [&](int i) { return load_raw<__m256>(p + i * stride); };
  const auto four = [&](vf(&v)[4], int first) {  // dwords 0 to 3 and 4 to 7 of 8 rows
    vf t[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      v[i] = (vf)_mm512_insertf32x8(_mm512_castps256_ps512(row(first + i)), row(first + i + 4), 1);
#pragma GCC unroll 2
    for (int i = 0; i < 4; i += 2) {
      t[i] = (vf)_mm512_unpacklo_ps((__m512)v[i], (__m512)v[i + 1]);
      t[i + 1] = (vf)_mm512_unpackhi_ps((__m512)v[i], (__m512)v[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      v[2 * i] = (vf)_mm512_unpacklo_pd((__m512d)t[i], (__m512d)t[i + 2]);
      v[2 * i + 1] = (vf)_mm512_unpackhi_pd((__m512d)t[i], (__m512d)t[i + 2]);
    }
  };
  vf low[4], high[4];
  four(low, 0);
  four(high, 8);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    m[i] = (vf)_mm512_shuffle_f32x4((__m512)low[i], (__m512)high[i], 0x88);
    m[i + 4] = (vf)_mm512_shuffle_f32x4((__m512)low[i], (__m512)high[i], 0xdd);
  }
#elif defined(__AVX2__)
  const auto row = [&](int i) { return load_raw<__m128>(p + i * stride); };
  vf t[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    m[i] = (vf)_mm256_insertf128_ps(_mm256_castps128_ps256(row(i)), row(i + 4), 1);
#pragma GCC unroll 2
  for (int i = 0; i < 4; i += 2) {
    t[i] = (vf)_mm256_unpacklo_ps((__m256)m[i], (__m256)m[i + 1]);
    t[i + 1] = (vf)_mm256_unpackhi_ps((__m256)m[i], (__m256)m[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    m[2 * i] = (vf)_mm256_unpacklo_pd((__m256d)t[i], (__m256d)t[i + 2]);
    m[2 * i + 1] = (vf)_mm256_unpackhi_pd((__m256d)t[i], (__m256d)t[i + 2]);
  }
#else
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) m[i] = load_raw<vf>(p + i * stride);
  transpose(m);
#endif
}

}  // namespace hearth::HEARTH_ISA
