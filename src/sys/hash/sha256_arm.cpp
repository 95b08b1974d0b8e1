// SHA-256 with the Armv8 cryptographic extension. CMakeLists.txt compiles this file with +crypto,
// which clang 14 needs to declare the intrinsics. It is called only on processors with the
// extension.
#if defined(__aarch64__)

#include <arm_neon.h>
#include <sys/auxv.h>

#include "sys/hash/sha256_blocks.h"

namespace hearth::inline sys {
namespace {

constexpr unsigned long hwcap_sha2 = 1ul << 6;  // HWCAP_SHA2 of <asm/hwcap.h>

void blocks(uint32_t state[8], const std::byte* data, size_t count) {
  uint32x4_t abcd = vld1q_u32(state), efgh = vld1q_u32(state + 4);
  for (; count > 0; --count, data += 64) {
    const uint32x4_t abcd_before = abcd, efgh_before = efgh;
    uint32x4_t w[4];  // the last 16 words of the message schedule
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      uint32x4_t& now = w[i % 4];
      if (i < 4) {
        const uint8x16_t raw = vld1q_u8(reinterpret_cast<const uint8_t*>(data) + 16 * i);
        now = vreinterpretq_u32_u8(vrev32q_u8(raw));
      } else {
        now = vsha256su0q_u32(now, w[(i + 1) % 4]);
        now = vsha256su1q_u32(now, w[(i + 2) % 4], w[(i + 3) % 4]);
      }
      const uint32x4_t wk = vaddq_u32(now, vld1q_u32(&sha256_k[size_t(4 * i)]));
      const uint32x4_t abcd_old = abcd;
      abcd = vsha256hq_u32(abcd, efgh, wk);
      efgh = vsha256h2q_u32(efgh, abcd_old, wk);
    }
    abcd = vaddq_u32(abcd, abcd_before);
    efgh = vaddq_u32(efgh, efgh_before);
  }
  vst1q_u32(state, abcd);
  vst1q_u32(state + 4, efgh);
}

}  // namespace

Sha256Blocks sha256_blocks_native() {
  return (getauxval(AT_HWCAP) & hwcap_sha2) != 0 ? blocks : nullptr;
}

}  // namespace hearth::inline sys

#endif
