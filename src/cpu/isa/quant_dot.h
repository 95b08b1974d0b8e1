// Integer dot products of one instruction set: `lanes` sums of 4 products each. All are exact, so
// every instruction set gives the same results.
#pragma once

#include "cpu/isa/simd.h"

namespace hearth::HEARTH_ISA::quant {

HEARTH_INLINE vi broadcast4(const int8_t* p) {
  int32_t quad;
  std::memcpy(&quad, p, 4);
  return quad - vi{};
}

// dot8: acc + w . x of signed bytes, |w|, |x| <= 127. If `biased`, x has 128 added to each byte,
// and the caller subtracts 128 times the sum of w.
//
// A group of 32 products with w in [0, 15] and a multiple of -8 for their sum of x: begin4 starts
// it with that offset, dot4 adds w . x, join4 adds two parts, and times4 gives acc + group * f. A
// set without a dot product of bytes keeps a group as two sums of 16 bits a lane: of 16 products
// x (w - 8) and -8 times 16 x, neither exceeds 16,256, so no half leaves the range at the end.
#if defined(__AVX512VNNI__)
constexpr bool biased = true;
constexpr const char* instructions = "AVX512-VNNI";
HEARTH_INLINE vi dot8(vi acc, vi x, vi w) {
  return (vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)x, (__m512i)w);
}
HEARTH_INLINE vi begin4(int32_t offset) { return offset - vi{}; }
HEARTH_INLINE vi join4(vi a, vi b) { return a + b; }
HEARTH_INLINE vi dot4(vi acc, vi w, vi x) { return dot8(acc, w, x); }
HEARTH_INLINE vi times4(vi acc, vi d, vi f) {
  return (vi)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)d, (__m512i)(f & 0xffff));
}
#elif defined(__AVX512BW__)
constexpr bool biased = false;
constexpr const char* instructions = "AVX512 maddubs";
HEARTH_INLINE vi begin4(int32_t offset) { return (offset & 0xffff) - vi{}; }
HEARTH_INLINE vi join4(vi a, vi b) { return (vi)_mm512_add_epi16((__m512i)a, (__m512i)b); }
HEARTH_INLINE vi pairs(vi w, vi x) { return (vi)_mm512_maddubs_epi16((__m512i)w, (__m512i)x); }
HEARTH_INLINE vi dot4(vi acc, vi w, vi x) { return join4(acc, pairs(w, x)); }
HEARTH_INLINE vi times4(vi acc, vi d, vi f) {
  return acc + (vi)_mm512_madd_epi16((__m512i)d, (__m512i)((f & 0xffff) | f << 16));
}
HEARTH_INLINE vi dot8(vi acc, vi x, vi w) {  // |x| * (w with the sign of x): no pair saturates
  const __mmask64 minus = _mm512_movepi8_mask((__m512i)x);
  const __m512i turned =
      _mm512_mask_sub_epi8((__m512i)w, minus, _mm512_setzero_si512(), (__m512i)w);
  const vi sums = pairs((vi)_mm512_abs_epi8((__m512i)x), (vi)turned);
  return acc + (vi)_mm512_madd_epi16((__m512i)sums, _mm512_set1_epi16(1));
}
#elif defined(__AVXVNNI__)
constexpr bool biased = true;
constexpr const char* instructions = "AVX-VNNI";
HEARTH_INLINE vi dot8(vi acc, vi x, vi w) {
  return (vi)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)x, (__m256i)w);
}
HEARTH_INLINE vi begin4(int32_t offset) { return offset - vi{}; }
HEARTH_INLINE vi join4(vi a, vi b) { return a + b; }
HEARTH_INLINE vi dot4(vi acc, vi w, vi x) { return dot8(acc, w, x); }
HEARTH_INLINE vi times4(vi acc, vi d, vi f) {
  return (vi)_mm256_dpwssd_avx_epi32((__m256i)acc, (__m256i)d, (__m256i)(f & 0xffff));
}
#elif defined(__AVX2__)
constexpr bool biased = false;
constexpr const char* instructions = "AVX2 maddubs";
HEARTH_INLINE vi begin4(int32_t offset) { return (offset & 0xffff) - vi{}; }
HEARTH_INLINE vi join4(vi a, vi b) { return (vi)_mm256_add_epi16((__m256i)a, (__m256i)b); }
HEARTH_INLINE vi pairs(vi w, vi x) { return (vi)_mm256_maddubs_epi16((__m256i)w, (__m256i)x); }
HEARTH_INLINE vi dot4(vi acc, vi w, vi x) { return join4(acc, pairs(w, x)); }
HEARTH_INLINE vi times4(vi acc, vi d, vi f) {
  return acc + (vi)_mm256_madd_epi16((__m256i)d, (__m256i)((f & 0xffff) | f << 16));
}
HEARTH_INLINE vi dot8(vi acc, vi x, vi w) {  // |x| * (w with the sign of x): no pair saturates
  const vi turned = (vi)_mm256_sign_epi8((__m256i)w, (__m256i)x);
  const vi sums = pairs((vi)_mm256_abs_epi8((__m256i)x), turned);
  return acc + (vi)_mm256_madd_epi16((__m256i)sums, _mm256_set1_epi16(1));
}
#elif defined(__aarch64__)
constexpr bool biased = false;
#if defined(__ARM_FEATURE_DOTPROD)
constexpr const char* instructions = "SDOT";
HEARTH_INLINE vi dot8(vi acc, vi x, vi w) {
  return (vi)vdotq_s32((int32x4_t)acc, (int8x16_t)w, (int8x16_t)x);
}
#else
constexpr const char* instructions = "NEON SMULL";
HEARTH_INLINE vi dot8(vi acc, vi x, vi w) {
  const int8x16_t a = (int8x16_t)w, b = (int8x16_t)x;
  const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_high_s8(a, b);
  return (vi)vpadalq_s16((int32x4_t)acc, vpaddq_s16(low, high));
}
#endif
HEARTH_INLINE vi begin4(int32_t offset) { return offset - vi{}; }
HEARTH_INLINE vi join4(vi a, vi b) { return a + b; }
HEARTH_INLINE vi dot4(vi acc, vi w, vi x) { return dot8(acc, x, w); }
HEARTH_INLINE vi times4(vi acc, vi d, vi f) { return acc + d * f; }
#else
constexpr bool biased = false;
constexpr const char* instructions = "portable";
HEARTH_INLINE vi dot8(vi acc, vi x, vi w) {
  for (int shift = 0; shift < 32; shift += 8)  // one byte of each lane at a time, sign extended
    acc += (w << (24 - shift) >> 24) * (x << (24 - shift) >> 24);
  return acc;
}
HEARTH_INLINE vi begin4(int32_t offset) { return offset - vi{}; }
HEARTH_INLINE vi join4(vi a, vi b) { return a + b; }
HEARTH_INLINE vi dot4(vi acc, vi w, vi x) { return dot8(acc, x, w); }
HEARTH_INLINE vi times4(vi acc, vi d, vi f) { return acc + d * f; }
#endif

}  // namespace hearth::HEARTH_ISA::quant
