// The router's formulas for one token, in float for the CPU backend and in double for the
// reference. RouteArgs, RouteBwdArgs and RouterStatsArgs (core/moe_args.h) say what they compute.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "core/moe_args.h"

namespace hearth::inline cpu {

constexpr double least_score_sum = 1e-20;  // added to the sum that scores are divided by

template <class Real>
class RouterRow {
 public:
  RouterRow(int64_t experts, int64_t k, const RouteSpec& spec)
      : E_(experts), k_(k), spec_(spec), raw_(size_t(experts)), keys_(size_t(experts)) {}

  void choose(int32_t* ids, Real* weights, const Real* logits, const Real* bias) {
    score(logits);
    const bool by_score = bias || spec_.groups > 1;
    for (int64_t i = 0; i < E_; ++i) {
      Real key = logits[i];
      if (by_score) key = raw_[at(i)] / whole_ + (bias ? bias[i] : Real(0));
      keys_[at(i)] = std::isnan(key) ? lowest : std::max(key, lowest);
    }
    if (spec_.groups > 1) mask_groups();
    for (int64_t j = 0; j < k_; ++j) {
      const int64_t best = std::ranges::max_element(keys_) - keys_.begin();  // the first of equals
      ids[j] = int32_t(best);
      keys_[at(best)] = taken;
    }
    const Real divisor = divisor_of(ids);
    for (int64_t j = 0; j < k_; ++j) weights[j] = Real(spec_.scale) * raw_[at(ids[j])] / divisor;
  }

  // `f`: the fraction of all pairs that each expert received; `balance` and `z` are the weights of
  // the losses of this token.
  void gradient(Real* dlogits, const Real* dweights, const int32_t* ids, const Real* logits,
                const Real* f, Real balance, Real z) {
    score(logits);
    const Real divisor = divisor_of(ids), scale = Real(spec_.scale);
    Real common = 0;
    for (int64_t j = 0; j < k_; ++j) common += dweights[j] * raw_[at(ids[j])] / divisor;
    if (spec_.sigmoid() && !spec_.norm) common = 0;
    const bool reaches_all = !spec_.sigmoid() && !spec_.norm;
    for (int64_t i = 0; i < E_; ++i)
      dlogits[i] = reaches_all ? -scale * raw_[at(i)] / divisor * common : Real(0);
    for (int64_t j = 0; j < k_; ++j) {
      const int64_t i = ids[j];
      const Real through = reaches_all ? dweights[j] : dweights[j] - common;
      dlogits[i] += scale * raw_[at(i)] / divisor * slope(i) * through;
    }
    if (balance == 0 && z == 0) return;
    Real mean = 0;
    for (int64_t i = 0; i < E_; ++i) mean += f[i] * raw_[at(i)] / sum_;
    for (int64_t i = 0; i < E_; ++i)
      dlogits[i] += balance * Real(E_) * raw_[at(i)] / sum_ * slope(i) * (f[i] - mean) +
                    z * 2 * lse_ * std::exp(logits[i] - lse_);
  }

  std::array<Real, 3> stats(const Real* logits, const Real* f) {
    score(logits);
    Real balance = 0, entropy = 0;
    for (int64_t i = 0; i < E_; ++i) {
      const Real p = raw_[at(i)] / sum_;
      balance += Real(E_) * f[i] * p;
      if (p > 0) entropy -= p * std::log(p);
    }
    return {balance, lse_ * lse_, entropy};
  }

 private:
  static constexpr Real lowest = -std::numeric_limits<Real>::max();
  static constexpr Real taken = -std::numeric_limits<Real>::infinity();
  static size_t at(int64_t i) { return size_t(i); }

  // raw_: scores up to a factor, which is 1 / whole_.
  void score(const Real* logits) {
    const Real top = *std::max_element(logits, logits + E_);
    Real exps = 0;
    sum_ = 0;
    for (int64_t i = 0; i < E_; ++i) {
      const Real e = std::exp(logits[i] - top);
      exps += e;
      raw_[at(i)] = spec_.sigmoid() ? 1 / (1 + std::exp(-logits[i])) : e;
      sum_ += raw_[at(i)];
    }
    lse_ = top + std::log(exps);
    whole_ = spec_.sigmoid() ? Real(1) : sum_;
  }

  Real slope(int64_t i) const { return spec_.sigmoid() ? 1 - raw_[at(i)] : Real(1); }

  Real divisor_of(const int32_t* ids) const {
    if (!spec_.norm) return whole_;
    Real chosen = 0;
    for (int64_t j = 0; j < k_; ++j) chosen += raw_[at(ids[j])];
    return chosen + Real(least_score_sum);
  }

  // Leaves the experts of the best groups; of equal groups the first.
  void mask_groups() {
    const int64_t size = E_ / spec_.groups;
    std::vector<Real> scores;
    for (int64_t g = 0; g < spec_.groups; ++g) {
      Real first = taken, second = taken;
      for (const Real x : std::span(keys_).subspan(at(g * size), at(size))) {
        second = std::max(second, std::min(first, x));
        first = std::max(first, x);
      }
      scores.push_back(std::max(lowest, size > 1 ? first + second : first));
    }
    std::vector<bool> kept(scores.size());
    for (int64_t n = 0; n < spec_.top_groups; ++n) {
      const auto best = std::ranges::max_element(scores) - scores.begin();
      kept[at(best)] = true;
      scores[at(best)] = taken;
    }
    for (int64_t i = 0; i < E_; ++i)
      if (!kept[at(i / size)]) keys_[at(i)] = taken;
  }

  const int64_t E_, k_;
  const RouteSpec& spec_;
  std::vector<Real> raw_, keys_;
  Real sum_ = 0, whole_ = 1, lse_ = 0;
};

}  // namespace hearth::inline cpu
