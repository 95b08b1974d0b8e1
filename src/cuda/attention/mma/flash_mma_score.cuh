// Score modifications between q . k and the softmax (softcap, ALiBi, a bias by distance), and
// dropout of probabilities. Only the "general" kernels use it; the plain ones handle causal masking
// and a window.
#pragma once

#include "core/math.h"
#include "cuda/device/quick_math.cuh"

namespace hearth::cuda {

constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;

// softcap * tanh(scale * s / softcap), with tanh x = 1 - 2 / (1 + e^2x). Its absolute error of
// about 1e-7, times softcap, is the error of the score.
struct Softcap {
  float cap, rate;

  __device__ Softcap(float softcap, float scale)
      : cap(softcap), rate(softcap > 0 ? 2 * log2_e * scale / softcap : 0) {}
  __device__ bool on() const { return cap > 0; }
  __device__ float apply(float s) const {
    return fmaf(-2 * cap, reciprocal_fast(1 + exp2_fast(s * rate)), cap);
  }
  // Also returns the slope, 1 - tanh^2.
  __device__ float apply(float s, float& slope) const {
    const float r = reciprocal_fast(1 + exp2_fast(s * rate));
    slope = 4 * r * (1 - r);
    return fmaf(-2 * cap, r, cap);
  }
};

// What is added to the scores of one head by distance. Warps read neighbouring entries of the bias,
// which L1 holds; most tiles of a long sequence are so far from their queries that they need only
// the last entry.
struct HeadBias {
  float slope = 0;              // ALiBi
  const float* bias = nullptr;  // (last + 1), or absent
  int last = 0;                 // distance from which on the bias is the same

  HeadBias() = default;
  __device__ HeadBias(const float* slopes, const float* biases, int distances, int h)
      : slope(slopes ? slopes[h] : 0),
        bias(biases ? biases + int64_t(h) * distances : nullptr),
        last(distances - 1) {}
  // A key that the query cannot see has the first entry.
  __device__ float at(int away) const { return __ldg(bias + min(max(away, 0), last)); }
};

// Dropout factors of op `salt`: 0 or 1 / (1 - p).
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
  // Factors of one 8-column accumulator of (queries, keys): rows `row` and `row + 8` of T elements,
  // columns from `column`. Four neighbours share a counter: each lane draws one and they swap.
  __device__ void accumulator(float (&keep)[4], uint64_t row, int T, int column, int lane) const {
    const int at = column + (lane & 3) * 2;
    if (T % 4) {
#pragma unroll
      for (int e = 0; e < 4; ++e) keep[e] = one((row + (e >> 1) * 8) * T + at + (e & 1));
      return;
    }
    const bool odd = lane & 1;
    const Words w = words((row + (odd ? 8 : 0)) * (T / 4) + (column + (lane & 2) * 2) / 4);
    const uint32_t left = __shfl_xor_sync(~0u, odd ? w.w[0] : w.w[2], 1);
    const uint32_t right = __shfl_xor_sync(~0u, odd ? w.w[1] : w.w[3], 1);
    keep[0] = factor(odd ? left : w.w[0]), keep[1] = factor(odd ? right : w.w[1]);
    keep[2] = factor(odd ? w.w[2] : left), keep[3] = factor(odd ? w.w[3] : right);
  }
  // The same for (keys, queries): columns are queries from `query`, rows are keys from `key` (of
  // lane 0) and `key + 8`. Of four lanes over four keys, each draws for one of its four elements.
  __device__ void transposed(float (&keep)[4], uint64_t query, int T, int key, int lane) const {
    const uint64_t row = query + (lane & 3) * 2;
    if (T % 4) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        keep[e] = one((row + (e & 1)) * T + key + lane / 4 + (e >> 1) * 8);
      return;
    }
    const int x = (lane >> 2) & 3;
    Words w = words((row + (x & 1)) * (T / 4) + (key + (x >> 1) * 8 + (lane >> 4) * 4) / 4);
    // A 4 x 4 transpose of words over lanes 4 apart, then 8 apart.
#pragma unroll
    for (int step = 1; step <= 2; step *= 2)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t &low = w.w[step == 1 ? 2 * i : i], &high = w.w[step == 1 ? 2 * i + 1 : i + 2];
        const uint32_t got = __shfl_xor_sync(~0u, x & step ? low : high, step * 4);
        if (x & step)
          low = got;
        else
          high = got;
      }
#pragma unroll
    for (int e = 0; e < 4; ++e) keep[e] = factor(w.w[e]);
  }
};

}  // namespace hearth::cuda
