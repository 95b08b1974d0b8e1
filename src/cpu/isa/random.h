// The random words of core/math.h for many consecutive elements at once: same counters, same bits.
#pragma once

#include "core/math.h"
#include "cpu/isa/simd.h"

namespace hearth::HEARTH_ISA {

constexpr int random_span = 4 * lanes;  // elements per call: each counter yields four

// Both halves of the 64-bit products of 32-bit lanes; even and odd lanes are multiplied separately.
struct Halves {
  vu high, low;
};
HEARTH_INLINE Halves multiply_wide(vu a, uint32_t b) {
  using wide [[gnu::vector_size(lanes * 4)]] = uint64_t;
  const wide low_half = wide{} + 0xffffffffu;
  const wide even = ((wide)a & low_half) * b, odd = ((wide)a >> 32) * b;
  return {(vu)((even >> 32) | (odd & ~low_half)), (vu)((even & low_half) | (odd << 32))};
}

// philox() of the counters (c0[i], c1[i], c2[i], c3[i]), four words each in out[4 i] and after.
inline void philox_words(uint32_t* out, vu c0, vu c1, vu c2, vu c3, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const Halves p0 = multiply_wide(c0, 0xD2511F53u), p1 = multiply_wide(c2, 0xCD9E8D57u);
    c0 = p1.high ^ c1 ^ k0;
    c1 = p1.low;
    c2 = p0.high ^ c3 ^ k1;
    c3 = p0.low;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int i = 0; i < lanes; ++i) {
    out[4 * i] = c0[i];
    out[4 * i + 1] = c1[i];
    out[4 * i + 2] = c2[i];
    out[4 * i + 3] = c3[i];
  }
}

// out[i] = random_word(s, salt, 4 * block + i) for i in [0, random_span).
inline void random_words(uint32_t* out, const Scalars& s, uint32_t salt, uint64_t block) {
  vu c0, c3;
  for (int i = 0; i < lanes; ++i) {
    c0[i] = uint32_t(block + uint64_t(i));
    c3[i] = s.micro ^ (uint32_t((block + uint64_t(i)) >> 32) << 16);
  }
  philox_words(out, c0, vu{} + salt, vu{} + s.step, c3, s.seed_lo, s.seed_hi);
}

// The words of elements [first, first + n), n <= 64, for any `first`; out has room for 64.
inline void random_row(uint32_t* out, const Scalars& s, uint32_t salt, uint64_t first, int64_t n) {
  uint32_t words[64 + 2 * random_span];
  const uint64_t skip = first % 4;
  for (uint64_t done = 0; done < skip + uint64_t(n); done += random_span)
    random_words(words + done, s, salt, first / 4 + done / 4);
  std::memcpy(out, words + skip, size_t(n) * 4);
}

HEARTH_INLINE uint32_t threshold_of(float p) { return uint32_t(double(p) * 4294967296.0); }

}  // namespace hearth::HEARTH_ISA
