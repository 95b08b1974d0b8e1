// SHA-256 with the x86 SHA extensions.
#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

#include "sys/hash/sha256_blocks.h"

namespace hearth::inline sys {
namespace {

bool has_sha_instructions() {
  constexpr unsigned ssse3 = 1u << 9, sse41 = 1u << 19, sha = 1u << 29;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & ssse3) == 0 || (c & sse41) == 0) return false;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & sha) != 0;
}

__attribute__((target("sha,sse4.1"))) void blocks(uint32_t state[8], const std::byte* data,
                                                  size_t count) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  // The instructions expect the eight words as (f, e, b, a) and (h, g, d, c), lowest first.
  const __m128i dcba = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state));
  const __m128i hgfe = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4));
  const __m128i cdab = _mm_shuffle_epi32(dcba, 0xb1), efgh = _mm_shuffle_epi32(hgfe, 0x1b);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);

  for (; count > 0; --count, data += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];  // the last 16 words of the message schedule
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      __m128i& now = w[i % 4];
      if (i < 4) {
        now = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 16 * i));
        now = _mm_shuffle_epi8(now, big_endian);
      } else {
        const __m128i last = w[(i + 3) % 4];
        const __m128i seventh = _mm_alignr_epi8(last, w[(i + 2) % 4], 4);
        now = _mm_add_epi32(_mm_sha256msg1_epu32(now, w[(i + 1) % 4]), seventh);
        now = _mm_sha256msg2_epu32(now, last);
      }
      const __m128i k = _mm_load_si128(reinterpret_cast<const __m128i*>(&sha256_k[size_t(4 * i)]));
      const __m128i wk = _mm_add_epi32(now, k);
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, wk);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(wk, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }

  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

}  // namespace

Sha256Blocks sha256_blocks_native() { return has_sha_instructions() ? blocks : nullptr; }

}  // namespace hearth::inline sys

#endif
