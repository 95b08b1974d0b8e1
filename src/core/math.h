// Scalar formulas shared by all backends: divisions that round up, activations with their slopes,
// the counter-based random generator, and the values that a replay reads from its scalars buffer.
#pragma once

#include <cmath>
#include <cstdint>

// HEARTH_FORMULA: always inlined, so that kernels compiled for one instruction set may use it too.
#if defined(__CUDACC__)
#define HEARTH_HD __host__ __device__
#define HEARTH_FORMULA __host__ __device__ __forceinline__
#else
#define HEARTH_HD
#define HEARTH_FORMULA [[gnu::always_inline]] inline
#endif

namespace hearth::inline core {

HEARTH_FORMULA constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
// The least multiple of `step` that is at least n.
HEARTH_FORMULA constexpr int64_t round_up(int64_t n, int64_t step) {
  return ceil_div(n, step) * step;
}

// The row of a table of `buckets` rows for a token and the one before it (negative: none, which has
// the last row for itself).
HEARTH_FORMULA int32_t bigram_bucket(int32_t before, int32_t token, int64_t buckets) {
  if (before < 0) return int32_t(buckets - 1);
  const uint32_t hash = uint32_t(token) * 36313u ^ uint32_t(before) * 27191u;
  return int32_t(hash % uint32_t(buckets - 1));
}

enum class Act : uint8_t { none, gelu_tanh, gelu_erf, relu2, swiglu, geglu, reglu, geglu_tanh };

// A GLU reads packed rows gate | up of twice the width and yields act(gate) * up.
constexpr bool is_glu(Act a) { return a >= Act::swiglu; }

// Value and slope of an activation at x; for a GLU, of the function applied to its gate.
template <class T>
struct Slope {
  T y, dy;
};

template <class T>
HEARTH_HD inline Slope<T> activate(Act a, T x) {
  switch (a) {
    case Act::none:
      return {x, T(1)};
    case Act::geglu_tanh:
    case Act::gelu_tanh: {
      const T c = T(0.7978845608028654), k = T(0.044715);
      const T t = std::tanh(c * (x + k * x * x * x));
      return {T(0.5) * x * (1 + t),
              T(0.5) * (1 + t) + T(0.5) * x * (1 - t * t) * c * (1 + 3 * k * x * x)};
    }
    case Act::geglu:
    case Act::gelu_erf: {
      const T cdf = T(0.5) * (1 + std::erf(x * T(0.7071067811865476)));
      const T pdf = T(0.3989422804014327) * std::exp(T(-0.5) * x * x);
      return {x * cdf, cdf + x * pdf};
    }
    case Act::relu2:
      return x > 0 ? Slope<T>{x * x, 2 * x} : Slope<T>{T(0), T(0)};
    case Act::swiglu: {
      const T s = 1 / (1 + std::exp(-x));
      return {x * s, s * (1 + x * (1 - s))};
    }
    case Act::reglu:
      return x > 0 ? Slope<T>{x, T(1)} : Slope<T>{T(0), T(0)};
  }
  return {T(0), T(0)};
}

// Philox4x32-10: four random words from a counter and a key, the same on every backend.
struct Words {
  uint32_t w[4];
};

HEARTH_FORMULA Words philox(Words c, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t(0xD2511F53u) * c.w[0], p1 = uint64_t(0xCD9E8D57u) * c.w[2];
    c = {{uint32_t(p1 >> 32) ^ c.w[1] ^ k0, uint32_t(p1), uint32_t(p0 >> 32) ^ c.w[3] ^ k1,
          uint32_t(p0)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// Values that change between replays. A program has one such struct in its "scalars" buffer: the
// host writes it before a replay, kernels read it.
struct Scalars {
  float lr = 0;
  float inv_targets = 1;  // 1 / unmasked targets of the whole optimizer step
  float clip = 0;         // largest gradient norm; 0: no clipping
  float loss_scale = 1;   // fp16: gradients carry this factor until the update
  uint32_t seed_lo = 0, seed_hi = 0;
  uint32_t step = 0, micro = 0;
  float momentum = 0;  // of Muon, at this step
  float share = 1;     // of this micro-batch in the step: 1 / micro-batches
};

// How a gradient enters a program: g times the loss scale. Every loss calls this, whether a kernel
// or the host computes its gradient; gate_update divides by the scale again.
template <class T>
HEARTH_HD inline T scaled_gradient(const Scalars& s, T g) {
  return g * T(s.loss_scale);
}

// State of the update program between steps, besides the optimizer's state.
struct UpdateState {
  float grad_norm = 0;   // of this step, before clipping
  float grad_scale = 0;  // factor the optimizer applies to gradients; 0 with `skip`
  float good_steps = 0;  // updates applied so far: the t of Adam's bias correction
  float skip = 0;        // 1: this step's gradient or loss was not finite, the update is skipped
  float skipped = 0;     // updates skipped so far
  float streak = 0;      // skipped updates in a row
  float loss = 0;        // of this step
  float reserved = 0;
};

// The random word of element i of the op `salt` in this step: dropped if word < p * 2^32.
HEARTH_HD inline uint32_t random_word(const Scalars& s, uint32_t salt, uint64_t i) {
  const uint64_t block = i / 4;
  const Words r = philox({{uint32_t(block), salt, s.step, s.micro ^ (uint32_t(block >> 32) << 16)}},
                         s.seed_lo, s.seed_hi);
  return r.w[i % 4];
}

HEARTH_HD inline uint32_t drop_threshold(float p) { return uint32_t(double(p) * 4294967296.0); }

}  // namespace hearth::inline core
