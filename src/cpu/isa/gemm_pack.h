// Packs an operand of gemm() into panels of dwords: dst[k * P + p] for P vectors. A dword is one
// float, or a pair of bf16 with consecutive k, as the dot-product instructions need them.
#pragma once

#include "cpu/isa/gemm_table.h"
#include "cpu/isa/simd.h"
#include "cpu/isa/transpose.h"

namespace hearth::HEARTH_ISA {

// How `lanes` dwords are read, along k of one vector or across vectors at one k. The partial forms
// also take how many elements of the vector, or how many vectors and how many k of the pair, exist.
template <class T>
struct AsFloat {
  using Source = T;
  static constexpr int step = 1;  // k per dword
  HEARTH_INLINE static vf along(const T* p) { return load(p); }
  HEARTH_INLINE static vf along_partial(const T* p, int64_t n) { return load_partial(p, n); }
  HEARTH_INLINE static vf across(const T* p, int64_t) { return load(p); }
  HEARTH_INLINE static vf across_partial(const T* p, int64_t, int64_t n, int64_t) {
    return load_partial(p, n);
  }
};

struct AsPair {
  using Source = bf16;
  static constexpr int step = 2;
  HEARTH_INLINE static vf along(const bf16* p) { return load_raw<vf>(p); }
  HEARTH_INLINE static vf along_partial(const bf16* p, int64_t n) {
#if defined(__AVX512BW__)
    return (vf)_mm512_maskz_loadu_epi16(__mmask32((1u << n) - 1), p);
#else
    uint16_t t[2 * lanes] = {};
    for (int64_t i = 0; i < n; ++i) t[i] = p[i].bits;
    return load_raw<vf>(t);
#endif
  }
  HEARTH_INLINE static vf join(vh low, vh high) {
    return from_bits(__builtin_convertvector(low, vu) | (__builtin_convertvector(high, vu) << 16));
  }
  HEARTH_INLINE static vf across(const bf16* p, int64_t ld) {
    return join(load_raw<vh>(p), load_raw<vh>(p + ld));
  }
  HEARTH_INLINE static vf across_partial(const bf16* p, int64_t ld, int64_t n, int64_t pair) {
    return join(load_half_partial(p, n), pair == 2 ? load_half_partial(p + ld, n) : vh{});
  }
};

// Rows are too short for the hardware prefetcher, so callers prefetch the same place of the next
// panel. The address may lie outside the matrix: a prefetch does not fault.
template <class T>
HEARTH_INLINE void prefetch(const T* p, int64_t offset) {
  __builtin_prefetch(reinterpret_cast<const void*>(uintptr_t(p) + uintptr_t(offset) * sizeof(T)));
}

// A k-major operand is read a few rows at a time across all its panels, in long runs of memory.
constexpr int64_t rows_at_a_time = 16;

// A panel whose width is not a multiple of `lanes` is stored in whole vectors that run into the
// next k, which is stored later; only the last k needs a partial store.
template <int P>
HEARTH_INLINE void store_row(float* dst, int o, vf v, bool last) {
  if (P % lanes != 0 && last)
    store_partial(dst + o, v, P - o);
  else
    store(dst + o, v);
}

// Packs steps [from, to) of one panel.
template <int P, class Read>
HEARTH_INLINE void pack_k_major(float* dst, const typename Read::Source* src, int64_t ld,
                                int64_t count, int64_t k, int64_t from, int64_t to) {
  const int64_t steps = (k + Read::step - 1) / Read::step;
  for (int64_t s = from; s < to; ++s) {
    const typename Read::Source* row = src + s * Read::step * ld;
    const int64_t pair = k - s * Read::step < Read::step ? k - s * Read::step : Read::step;
#pragma GCC unroll 4
    for (int o = 0; o < P; o += lanes) {
      const int64_t left = count - o;
      vf v = zero();
      if (left >= lanes && pair == Read::step)
        v = Read::across(row + o, ld);
      else if (left > 0)
        v = Read::across_partial(row + o, ld, left < lanes ? left : lanes, pair);
      store_row<P>(dst + s * P, o, v, s + 1 == steps);
    }
  }
}

template <int P, class Read>
HEARTH_INLINE void pack_p_major(float* dst, const typename Read::Source* src, int64_t ld,
                                int64_t count, int64_t k) {
  const int64_t steps = (k + Read::step - 1) / Read::step;
  for (int64_t s = 0; s < steps; s += lanes) {
    const int64_t left = k - s * Read::step;
    const bool whole = left >= lanes * Read::step;
    for (int o = 0; o < P; o += lanes) {
      vf m[lanes];
      const typename Read::Source* from = src + o * ld + s * Read::step;
      if (whole && count - o >= (P - o < lanes ? P - o : lanes)) {
#pragma GCC unroll 16
        for (int i = 0; i < lanes; ++i) {
          m[i] = o + i < P ? Read::along(from + i * ld) : zero();
          prefetch(from, (i + P) * ld);
        }
      } else {
        for (int i = 0; i < lanes; ++i) {
          if (o + i >= P || o + i >= count)
            m[i] = zero();
          else
            m[i] = whole ? Read::along(from + i * ld) : Read::along_partial(from + i * ld, left);
        }
      }
      transpose(m);
      if (steps - s > lanes || (P % lanes == 0 && steps - s == lanes)) {
#pragma GCC unroll 16
        for (int i = 0; i < lanes; ++i) store(dst + (s + i) * P + o, m[i]);
      } else {
        for (int i = 0; i < lanes && s + i < steps; ++i)
          store_row<P>(dst + (s + i) * P, o, m[i], s + i + 1 == steps);
      }
    }
  }
}

// GemmPack for panels of P vectors; k is padded to a multiple of k_unit.
template <int P, class Read, int k_unit>
void pack(void* packed, const GemmOperand& operand, int64_t count, int64_t k) {
  static_assert(P % lanes == 0 || P < lanes);
  static_assert(k_unit % Read::step == 0);
  const auto* src = static_cast<const typename Read::Source*>(operand.data);
  const int64_t steps = (k + Read::step - 1) / Read::step;
  const int64_t padded = (k + k_unit - 1) / k_unit * k_unit / Read::step;
  float* dst = static_cast<float*>(packed);
  if (operand.k_major) {
    for (int64_t s = 0; s < steps; s += rows_at_a_time) {
      const int64_t end = s + rows_at_a_time < steps ? s + rows_at_a_time : steps;
      for (int64_t p = 0; p < count; p += P)
        pack_k_major<P, Read>(dst + p * padded, src + p, operand.ld, count - p, k, s, end);
    }
  } else {
    for (int64_t p = 0; p < count; p += P)
      pack_p_major<P, Read>(dst + p * padded, src + p * operand.ld, operand.ld, count - p, k);
  }
  for (int64_t p = 0; p < count; p += P)
    for (int64_t i = steps * P; i < padded * P; ++i) dst[p * padded + i] = 0;
}

}  // namespace hearth::HEARTH_ISA
