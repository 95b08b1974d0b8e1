// vf: a vector of `lanes` floats, as wide as the instruction set this file is compiled for.
// Arithmetic and comparisons are the compiler's own operators (a + b, a * s, a < b); this file adds
// the operations they lack.
//
// Rules for files in this folder: everything lives in namespace hearth::HEARTH_ISA; no std
// containers, algorithms or other inline code of shared namespaces (see
// cmake/check_isa_symbols.sh); for threads use parallel() of cpu/isa/parallel.h. A typical loop:
//
//   int64_t i = 0;
//   for (; i + lanes <= n; i += lanes) store(y + i, fma(load(x + i), scale, shift));
//   if (i < n) store_partial(y + i, fma(load_partial(x + i, n - i), scale, shift), n - i);
//
// x and y may be float, bf16, f16 or e4m3 pointers; conversions round to nearest even, to the same
// bits as core/dtype.h. The preprocessor selects instructions here and in the gemm kernels, nowhere
// else.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/dtype.h"
#include "core/fp8.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace hearth::HEARTH_ISA {

#if defined(__AVX512F__)
constexpr int lanes = 16;
#elif defined(__AVX2__)
constexpr int lanes = 8;
#else
constexpr int lanes = 4;
#endif

using vf [[gnu::vector_size(lanes * 4)]] = float;
using vi [[gnu::vector_size(lanes * 4)]] = int32_t;  // also the type of a < b: -1 or 0 per lane
using vu [[gnu::vector_size(lanes * 4)]] = uint32_t;
using vh [[gnu::vector_size(lanes * 2)]] = uint16_t;  // the bits of bf16 or f16
using vb [[gnu::vector_size(lanes)]] = uint8_t;       // the bits of e4m3

#define HEARTH_INLINE [[gnu::always_inline]] inline

// Reinterpretation and conversion.
HEARTH_INLINE vu bits(vf a) { return (vu)a; }
HEARTH_INLINE vf from_bits(vu a) { return (vf)a; }
HEARTH_INLINE vf to_float(vi a) { return __builtin_convertvector(a, vf); }
HEARTH_INLINE vi to_int(vf a) { return __builtin_convertvector(a, vi); }  // towards zero

HEARTH_INLINE vi to_nearest(vf a) {  // rounds ties to even, the default rounding mode
#if defined(__AVX512F__)
  return (vi)_mm512_cvtps_epi32((__m512)a);
#elif defined(__AVX2__)
  return (vi)_mm256_cvtps_epi32((__m256)a);
#elif defined(__x86_64__)
  return (vi)_mm_cvtps_epi32((__m128)a);
#elif defined(__aarch64__)
  return (vi)vcvtnq_s32_f32((float32x4_t)a);
#else
  vi r;
  for (int i = 0; i < lanes; ++i) r[i] = int32_t(__builtin_nearbyintf(a[i]));
  return r;
#endif
}

HEARTH_INLINE vf broadcast(float a) { return a - vf{}; }  // keeps the sign of zero, unlike a + 0
HEARTH_INLINE vf zero() { return vf{}; }

// a * b + c, rounded once wherever the hardware can (everywhere but on `generic`).
HEARTH_INLINE vf fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}
HEARTH_INLINE vf fma(vf a, float b, vf c) { return fma(a, broadcast(b), c); }
HEARTH_INLINE vf fma(vf a, vf b, float c) { return fma(a, b, broadcast(c)); }
HEARTH_INLINE vf fma(vf a, float b, float c) { return fma(a, broadcast(b), broadcast(c)); }

HEARTH_INLINE vf select(vi mask, vf yes, vf no) { return mask ? yes : no; }
// A NaN in either argument gives NaN.
HEARTH_INLINE vf min(vf a, vf b) { return select((a < b) | (a != a), a, b); }
HEARTH_INLINE vf max(vf a, vf b) { return select((a > b) | (a != a), a, b); }
HEARTH_INLINE vf abs(vf a) { return from_bits(bits(a) & 0x7fffffffu); }
HEARTH_INLINE vf copysign(vf magnitude, vf sign) {
  return from_bits((bits(magnitude) & 0x7fffffffu) | (bits(sign) & 0x80000000u));
}
HEARTH_INLINE vf sqrt(vf a) {
#if defined(__AVX512F__)
  return (vf)_mm512_sqrt_ps((__m512)a);
#elif defined(__AVX2__)
  return (vf)_mm256_sqrt_ps((__m256)a);
#elif defined(__x86_64__)
  return (vf)_mm_sqrt_ps((__m128)a);
#elif defined(__aarch64__)
  return (vf)vsqrtq_f32((float32x4_t)a);
#else
  for (int i = 0; i < lanes; ++i) a[i] = __builtin_sqrtf(a[i]);
  return a;
#endif
}

// Horizontal sum and maximum: halves are folded onto each other, in a fixed order.
HEARTH_INLINE float sum(vf a) {
  float t[lanes];
  std::memcpy(t, &a, sizeof a);
  for (int h = lanes / 2; h > 0; h /= 2)
    for (int i = 0; i < h; ++i) t[i] += t[i + h];
  return t[0];
}
HEARTH_INLINE float max_lane(vf a) {
  float t[lanes];
  std::memcpy(t, &a, sizeof a);
  for (int h = lanes / 2; h > 0; h /= 2)
    for (int i = 0; i < h; ++i) t[i] = (t[i] > t[i + h] || t[i] != t[i]) ? t[i] : t[i + h];
  return t[0];
}

// bf16 and f16 bits. VCVTNEPS2BF16 is not used: it flushes denormals, core/dtype.h does not. GCC 12
// would widen the halves of a vector separately and join them: four shuffles instead of one.
HEARTH_INLINE vf bf16_to_float(vh a) {
#if defined(__AVX512F__)
  return from_bits((vu)_mm512_cvtepu16_epi32((__m256i)a) << 16);
#elif defined(__AVX2__)
  return from_bits((vu)_mm256_cvtepu16_epi32((__m128i)a) << 16);
#elif defined(__x86_64__)
  return (vf)_mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64((const __m128i*)&a));
#elif defined(__aarch64__)
  return (vf)vshll_n_u16((uint16x4_t)a, 16);
#else
  return from_bits(__builtin_convertvector(a, vu) << 16);
#endif
}
HEARTH_INLINE vh float_to_bf16(vf a) {
  const vu u = bits(a);
  const vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, quiet = (u >> 16) | 0x40u;
  return __builtin_convertvector(a == a ? rounded : quiet, vh);
}
HEARTH_INLINE vf f16_to_float(vh a) {
#if defined(__AVX512F__)
  return (vf)_mm512_cvtph_ps((__m256i)a);
#elif defined(__F16C__)
  return (vf)_mm256_cvtph_ps((__m128i)a);
#elif defined(__aarch64__)
  return (vf)vcvt_f32_f16((float16x4_t)a);
#else
  vf r;
  for (int i = 0; i < lanes; ++i) {
    f16 h;
    h.bits = a[i];
    r[i] = float(h);
  }
  return r;
#endif
}
HEARTH_INLINE vh float_to_f16(vf a) {
  a = a == a ? a : copysign(from_bits(vu{} + 0x7fc00000u), a);  // one NaN, as in core/dtype.h
#if defined(__AVX512F__)
  return (vh)_mm512_cvtps_ph((__m512)a, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__)
  return (vh)_mm256_cvtps_ph((__m256)a, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__aarch64__)
  return (vh)vcvt_f16_f32((float32x4_t)a);
#else
  vh r;
  for (int i = 0; i < lanes; ++i) r[i] = f16(a[i]).bits;
  return r;
#endif
}

// Sign-extends bytes; the compiler would convert them one by one.
HEARTH_INLINE vi widen_signed(vb a) {
#if defined(__AVX512F__)
  return (vi)_mm512_cvtepi8_epi32((__m128i)a);
#elif defined(__AVX2__)
  return (vi)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((long long)a));
#elif defined(__x86_64__)
  const __m128i bytes = _mm_cvtsi32_si128((int)a), twice = _mm_unpacklo_epi8(bytes, bytes);
  return (vi)_mm_srai_epi32(_mm_unpacklo_epi16(twice, twice), 24);
#elif defined(__aarch64__)
  return (vi)vmovl_s16(vget_low_s16(vmovl_s8((int8x8_t)vdup_n_u32((uint32_t)a))));
#else
  vi r;
  for (int i = 0; i < lanes; ++i) r[i] = int8_t(a[i]);
  return r;
#endif
}

// e4m3 bits. Both directions handle only what a cache holds: finite values.
HEARTH_INLINE vf e4m3_to_float(vb a) {
  // Moves sign, exponent and mantissa to their places in a float; the multiplication corrects the
  // exponent's bias. Codes below 8 become denormals, which cost a microcode assist, but they are
  // rare because the largest code of a row is near 448.
  return from_bits((vu)(widen_signed(a) << 20) & 0x87f00000u) * 0x1p120f;
}
HEARTH_INLINE vb float_to_e4m3(vf a) {
  const vf magnitude = abs(a);
  const vu small = bits(magnitude + 0x1p14f) - 0x46800000u, r = bits(magnitude) - (120u << 23);
  vu code = (r + 0x7ffffu + ((r >> 20) & 1u)) >> 20;
  code = magnitude < broadcast(0x1p-6f) ? small : code;
  code = code > 0x7eu ? vu{} + 0x7eu : code;
  return __builtin_convertvector(code | ((bits(a) >> 24) & 0x80u), vb);
}

// Loads and stores of `lanes` elements; pointers need no alignment.
template <class V, class T>
HEARTH_INLINE V load_raw(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
HEARTH_INLINE vf load(const float* p) { return load_raw<vf>(p); }
HEARTH_INLINE vf load(const bf16* p) { return bf16_to_float(load_raw<vh>(p)); }
HEARTH_INLINE vf load(const f16* p) { return f16_to_float(load_raw<vh>(p)); }
HEARTH_INLINE vf load(const e4m3* p) { return e4m3_to_float(load_raw<vb>(p)); }
HEARTH_INLINE void store(float* p, vf a) { std::memcpy(p, &a, sizeof a); }
HEARTH_INLINE void store(bf16* p, vf a) {
  const vh h = float_to_bf16(a);
  std::memcpy(static_cast<void*>(p), &h, sizeof h);
}
HEARTH_INLINE void store(f16* p, vf a) {
  const vh h = float_to_f16(a);
  std::memcpy(static_cast<void*>(p), &h, sizeof h);
}
HEARTH_INLINE void store(e4m3* p, vf a) {
  const vb b = float_to_e4m3(a);
  std::memcpy(static_cast<void*>(p), &b, sizeof b);
}

// The first n elements, 0 <= n <= lanes; memory past them is not touched, the other lanes are zero.
HEARTH_INLINE vf load_partial(const float* p, int64_t n) {
#if defined(__AVX512F__)
  return (vf)_mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p);
#else
  float t[lanes] = {};
  for (int64_t i = 0; i < n; ++i) t[i] = p[i];
  return load(t);
#endif
}
template <class T>
HEARTH_INLINE vh load_half_partial(const T* p, int64_t n) {
  uint16_t t[lanes] = {};
  for (int64_t i = 0; i < n; ++i) t[i] = p[i].bits;
  return load_raw<vh>(t);
}
HEARTH_INLINE vf load_partial(const bf16* p, int64_t n) {
  return bf16_to_float(load_half_partial(p, n));
}
HEARTH_INLINE vf load_partial(const f16* p, int64_t n) {
  return f16_to_float(load_half_partial(p, n));
}
HEARTH_INLINE vf load_partial(const e4m3* p, int64_t n) {
  uint8_t t[lanes] = {};
  for (int64_t i = 0; i < n; ++i) t[i] = p[i].bits;
  return e4m3_to_float(load_raw<vb>(t));
}
HEARTH_INLINE void store_partial(float* p, vf a, int64_t n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), (__m512)a);
#else
  float t[lanes];
  store(t, a);
  for (int64_t i = 0; i < n; ++i) p[i] = t[i];
#endif
}
template <class T>
HEARTH_INLINE void store_half_partial(T* p, vh h, int64_t n) {
  uint16_t t[lanes];
  std::memcpy(t, &h, sizeof h);
  for (int64_t i = 0; i < n; ++i) p[i].bits = t[i];
}
HEARTH_INLINE void store_partial(bf16* p, vf a, int64_t n) {
  store_half_partial(p, float_to_bf16(a), n);
}
HEARTH_INLINE void store_partial(f16* p, vf a, int64_t n) {
  store_half_partial(p, float_to_f16(a), n);
}
HEARTH_INLINE void store_partial(e4m3* p, vf a, int64_t n) {
  const vb b = float_to_e4m3(a);
  for (int64_t i = 0; i < n; ++i) p[i].bits = b[i];
}

}  // namespace hearth::HEARTH_ISA
