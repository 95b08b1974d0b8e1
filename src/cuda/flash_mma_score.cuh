// What happens to a score between q . k and the softmax: softcap, ALiBi, masks; and the dropout of
// probabilities. Only the "general" kernels use it; the plain ones know causality and window.
#pragma once

#include "core/math.h"

namespace hearth::cuda {

constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;

// 1 - 2 / (1 + e^2x): absolute error of a few 1e-7, which the cap multiplies by at most ~100.
__device__ inline float tanh_of(float x) { return 1 - __fdividef(2.0f, 1 + __expf(2 * x)); }

// Which of the elements e and e + 1 of op `salt` are kept, as factors 0 or 1 / (1 - p).
struct Dropout {
  Scalars scalars;
  uint32_t salt = 0, threshold = 0;
  float inverse = 1;

  __device__ Dropout(const Scalars* s, uint32_t salt, float p) : salt(salt) {
    if (p <= 0) return;
    scalars = *s;
    threshold = drop_threshold(p);
    inverse = 1 / (1 - p);
  }
  __device__ Words words(uint64_t block) const {
    return philox(
        {{uint32_t(block), salt, scalars.step, scalars.micro ^ (uint32_t(block >> 32) << 16)}},
        scalars.seed_lo, scalars.seed_hi);
  }
  __device__ float factor(uint32_t word) const { return word < threshold ? 0.0f : inverse; }
  __device__ float one(uint64_t e) const {
    const Words w = words(e / 4);
    const int at = int(e & 3);
    return factor(at == 0 ? w.w[0] : at == 1 ? w.w[1] : at == 2 ? w.w[2] : w.w[3]);
  }
  // Of two neighbours: one counter serves both unless a block of four ends between them.
  __device__ float2 pair(uint64_t e) const {
    const Words w = words(e / 4);
    const int at = int(e & 3);
    const uint32_t one = at == 0 ? w.w[0] : at == 1 ? w.w[1] : at == 2 ? w.w[2] : w.w[3];
    const uint32_t two = at == 0   ? w.w[1]
                         : at == 1 ? w.w[2]
                         : at == 2 ? w.w[3]
                                   : words(e / 4 + 1).w[0];
    return {factor(one), factor(two)};
  }
};

}  // namespace hearth::cuda
