// The formulas of the elementwise optimizers, and how their state is rounded. A rule has two:
// `apply`, in the arithmetic type of a backend (a float, a vector of floats) with the factors
// common to all weights computed once, and `reference`, the published formula in double precision,
// which the reference backend runs.
#pragma once

#include "core/dynamic_code.h"
#include "core/math.h"

namespace hearth::inline core {

enum class UpdateRule : uint8_t { adamw, lion, nesterov, descent };
inline constexpr UpdateRule update_rules[] = {UpdateRule::adamw, UpdateRule::lion,
                                              UpdateRule::nesterov, UpdateRule::descent};

constexpr int most_slots = 2;  // the most that any rule has

// A rule and its hyperparameters.
struct RuleSpec {
  UpdateRule rule = UpdateRule::adamw;
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, decay = 0;
  float rate = 1;         // factor on the learning rate, also that of the decay
  float scale = 1;        // descent: factor on the update alone
  bool cautious = false;  // descent: decay only the weights that the update moves toward 0
};

HEARTH_FORMULA double power(double x, int64_t n) {
  double r = 1;
  for (; n > 0; n /= 2, x *= x)
    if (n % 2) r *= x;
  return r;
}

// --- stochastic rounding of state that is stored in bf16 ---
//
// A value goes up or down to a neighbour in bf16 with the probability that keeps its mean, so that
// a moment follows changes smaller than its 8 significant bits. The random bits depend on the seed,
// the number of the update, the element and the slot only.

// Of one update. Without initial values, because kernels share one per block.
struct RoundingKey {
  uint32_t first, second;
};
HEARTH_FORMULA RoundingKey rounding_key(const UpdateState& st, const Scalars& sc) {
  constexpr uint32_t salt = 0x5712u;  // separates these draws from other uses of a seed
  const Words w = philox({{uint32_t(st.good_steps), 0, 0, salt}}, sc.seed_lo, sc.seed_hi);
  return {w.w[0], w.w[1]};
}

// The random bits of an element, given by the halves of its number, for all its slots: 16 for each.
// A hash with the multipliers of C. Wellons' search for the least bias. U: uint32_t or a vector of
// them.
template <class U>
HEARTH_FORMULA U rounding_word(const RoundingKey& key, U low, U high) {
  U x = low ^ key.first;
  x = (x ^ (x >> 16)) * 0x21f0aaadu;
  x = (x ^ (x >> 15)) + key.second + high * 0x9E3779B9u;
  x = (x ^ (x >> 16)) * 0x735a2d97u;
  return x ^ (x >> 15);
}

// The bits of a float that is not NaN, rounded to those of a bf16 followed by zeros.
template <class U>
HEARTH_FORMULA U rounded_stochastically(U bits, U word, int slot) {
  return (bits + (slot == 0 ? word & 0xffffu : word >> 16)) & 0xffff0000u;
}

// AdamW as PyTorch computes it. Slots: first moment, second moment.
struct AdamwRule {
  static constexpr const char* name = "adamw";
  static constexpr int slots = 2;
  static constexpr bool is_signed(int slot) { return slot == 0; }

  struct Factors {
    float grad_scale, beta1, beta2, eps, keep, step, root;  // root: 1 / sqrt(1 - beta2^t)
  };

  HEARTH_FORMULA static Factors factors(const UpdateState& st, const Scalars& sc,
                                        const RuleSpec& spec) {
    const auto t = int64_t(st.good_steps);
    const double first = 1 - power(double(spec.beta1), t);
    const double second = 1 - power(double(spec.beta2), t);
    return {st.grad_scale,
            spec.beta1,
            spec.beta2,
            spec.eps,
            float(1 - double(sc.lr) * double(spec.rate) * double(spec.decay)),
            float(double(sc.lr) * double(spec.rate) / first),
            float(1 / std::sqrt(second))};
  }

  // The new weight. `old` is the master if there is one; `s` is updated in place.
  template <class Math, class V>
  HEARTH_FORMULA static V apply(V old, V g, V* s, const Factors& a) {
    const V grad = g * a.grad_scale;
    const V m1 = s[0], v1 = s[1];
    const V m2 = m1 + (grad - m1) * (1 - a.beta1);
    const V v2 = v1 * a.beta2 + grad * grad * (1 - a.beta2);
    s[0] = m2, s[1] = v2;
    return old * a.keep - a.step * m2 / (Math::sqrt(v2) * a.root + a.eps);
  }

  static double reference(double w, double g, double* s, const UpdateState& st, const Scalars& sc,
                          const RuleSpec& spec) {
    const double b1 = spec.beta1, b2 = spec.beta2, grad = g * st.grad_scale;
    const double lr = double(sc.lr) * spec.rate;
    w -= lr * spec.decay * w;
    s[0] = b1 * s[0] + (1 - b1) * grad;
    s[1] = b2 * s[1] + (1 - b2) * grad * grad;
    const double m = s[0] / (1 - std::pow(b1, st.good_steps));
    const double v = s[1] / (1 - std::pow(b2, st.good_steps));
    return w - lr * m / (std::sqrt(v) + spec.eps);
  }
};

// Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms"): the sign of the
// momentum interpolated with the gradient. Slot: the momentum.
struct LionRule {
  static constexpr const char* name = "lion";
  static constexpr int slots = 1;

  struct Factors {
    float grad_scale, beta1, beta2, keep, lr;
  };

  HEARTH_FORMULA static Factors factors(const UpdateState& st, const Scalars& sc,
                                        const RuleSpec& spec) {
    const double lr = double(sc.lr) * double(spec.rate);
    return {st.grad_scale, spec.beta1, spec.beta2, float(1 - lr * double(spec.decay)), float(lr)};
  }

  template <class Math, class V>
  HEARTH_FORMULA static V apply(V old, V g, V* s, const Factors& a) {
    const V grad = g * a.grad_scale, m = s[0], none = V{}, one = none + 1.0f;
    const V c = m + (grad - m) * (1 - a.beta1);
    s[0] = m + (grad - m) * (1 - a.beta2);
    const V sign = c > none ? one : (c < none ? -one : none);
    return old * a.keep - sign * a.lr;
  }

  static double reference(double w, double g, double* s, const UpdateState& st, const Scalars& sc,
                          const RuleSpec& spec) {
    const double b1 = spec.beta1, b2 = spec.beta2, grad = g * st.grad_scale;
    const double lr = double(sc.lr) * spec.rate;
    const double c = b1 * s[0] + (1 - b1) * grad;
    s[0] = b2 * s[0] + (1 - b2) * grad;
    return w - lr * (double(c > 0) - double(c < 0) + spec.decay * w);
  }
};

// The first step of Muon: the momentum takes up the gradient, and the "weight" receives the
// Nesterov combination of both, which is then orthogonalised. Slots: the momentum.
struct NesterovRule {
  static constexpr const char* name = "nesterov";
  static constexpr int slots = 1;

  struct Factors {
    float grad_scale, momentum;
  };

  HEARTH_FORMULA static Factors factors(const UpdateState& st, const Scalars& sc, const RuleSpec&) {
    return {st.grad_scale, sc.momentum};
  }

  template <class Math, class V>
  HEARTH_FORMULA static V apply(V, V g, V* s, const Factors& a) {
    const V grad = g * a.grad_scale, m = s[0];
    s[0] = m + (grad - m) * (1 - a.momentum);
    return grad + (s[0] - grad) * a.momentum;
  }

  static double reference(double, double g, double* s, const UpdateState& st, const Scalars& sc,
                          const RuleSpec&) {
    const double mu = sc.momentum, grad = g * st.grad_scale;
    s[0] = mu * s[0] + (1 - mu) * grad;
    return mu * s[0] + (1 - mu) * grad;
  }
};

// The last step of Muon: the weight moves against an update that is finished but for its scale,
// which stands in the place of the gradient. No slots.
struct DescentRule {
  static constexpr const char* name = "descent";
  static constexpr int slots = 0;

  struct Factors {
    float step, decay;  // both times the learning rate
    bool cautious;
  };

  HEARTH_FORMULA static Factors factors(const UpdateState&, const Scalars& sc,
                                        const RuleSpec& spec) {
    const double lr = double(sc.lr) * double(spec.rate);
    return {float(lr * double(spec.scale)), float(lr * double(spec.decay)), spec.cautious};
  }

  template <class Math, class V>
  HEARTH_FORMULA static V apply(V old, V g, V*, const Factors& a) {
    const V none = V{}, decay = old * a.decay;
    const V taken = a.cautious ? (g * old >= none ? decay : none) : decay;
    return old - taken - g * a.step;
  }

  static double reference(double w, double g, double*, const UpdateState&, const Scalars& sc,
                          const RuleSpec& spec) {
    const double lr = double(sc.lr) * spec.rate;
    const double decay = spec.cautious && !(g * w >= 0) ? 0 : spec.decay;
    return w - lr * (decay * w + spec.scale * g);
  }
};

// Calls f with the type of the rule: f(AdamwRule{}) and so on.
template <class F>
[[gnu::always_inline]] inline void by_rule(UpdateRule r, F&& f) {
  switch (r) {
    case UpdateRule::adamw:
      return f(AdamwRule{});
    case UpdateRule::lion:
      return f(LionRule{});
    case UpdateRule::nesterov:
      return f(NesterovRule{});
    case UpdateRule::descent:
      return f(DescentRule{});
  }
}

}  // namespace hearth::inline core
