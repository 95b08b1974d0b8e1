#include "align/grpo_loss.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace hearth {
namespace {

// The share of a completion's per-token terms in the loss.
double token_share(const PolicyBatch& b, const PolicyLossSpec& s, size_t completion) {
  const double all = b.step_completions > 0 ? b.step_completions : double(b.lengths.size());
  const double tokens = b.step_tokens > 0 ? b.step_tokens : double(b.now.size());
  switch (s.reduction) {
    case Reduction::grpo:
      return 1 / (double(all) * double(b.lengths[completion]));
    case Reduction::bnpo:
      return 1 / double(tokens);
    case Reduction::dr_grpo:
      return 1 / (double(all) * double(s.max_completion));
    case Reduction::dapo:
      return 1 / double(b.generation_tokens);
  }
  return 0;
}

struct Clipped {
  double value, drho;  // -min(rho A, clip(rho) A), and its slope
  bool low, high;      // the slope is 0 for rho lies beyond that side
};

Clipped clipped(double rho, double advantage, const PolicyLossSpec& s) {
  const double low = 1 - s.epsilon, high = 1 + s.epsilon_high;
  const bool below = rho < low && advantage<0, above = rho> high && advantage > 0;
  if (below) return {-low * advantage, 0, true, false};
  if (above) return {-high * advantage, 0, false, true};
  return {-rho * advantage, -advantage, false, false};
}

void check_batch(const PolicyBatch& b, const PolicyLossSpec& s) {
  int64_t tokens = 0;
  for (const int64_t n : b.lengths) {
    if (n < 1) fail("policy loss", "expected completions of at least one token, got {}", n);
    tokens += n;
  }
  const auto expect = [&](size_t got, int64_t wanted, const char* what) {
    if (int64_t(got) != wanted) fail("policy loss", "expected {} {}, got {}", wanted, what, got);
  };
  expect(b.advantages.size(), int64_t(b.lengths.size()), "advantages");
  expect(b.now.size(), tokens, "log-probabilities");
  expect(b.old.size(), tokens, "old log-probabilities");
  if (s.beta != 0) expect(b.reference.size(), tokens, "reference log-probabilities");
  if (!b.weights.empty()) expect(b.weights.size(), tokens, "weights");
  if (s.reduction == Reduction::dapo && b.generation_tokens < 1)
    fail("policy loss", "expected the tokens of the generation batch, got {}", b.generation_tokens);
}

}  // namespace

KlTerm kl_term(KlForm form, double now, double reference) {
  const double d = reference - now;
  switch (form) {
    case KlForm::k1:
      return {-d, 1};
    case KlForm::k2:
      return {d * d / 2, -d};
    case KlForm::k3:
      return {std::expm1(d) - d, -std::expm1(d)};
  }
  return {0, 0};
}

PolicyLoss policy_loss(const PolicyBatch& b, const PolicyLossSpec& s) {
  check_batch(b, s);
  PolicyLoss r;
  r.dnow.assign(b.now.size(), 0);
  const double tokens = double(std::max<size_t>(b.now.size(), 1));
  const bool by_sequence = s.ratio == RatioLevel::sequence;
  const double ratios = by_sequence ? double(std::max<size_t>(b.lengths.size(), 1)) : tokens;
  size_t begin = 0;
  for (size_t c = 0; c < b.lengths.size(); ++c) {
    const size_t end = begin + size_t(b.lengths[c]);
    const double share = token_share(b, s, c), advantage = b.advantages[c];
    double mean_log = 0;
    for (size_t t = begin; t < end; ++t) mean_log += (b.now[t] - b.old[t]) / double(b.lengths[c]);
    double by_all = 0;  // d loss / d mean_log, from every token
    for (size_t t = begin; t < end; ++t) {
      const double rho = std::exp(by_sequence ? mean_log : b.now[t] - b.old[t]);
      const double weight = b.weights.empty() ? 1 : b.weights[t];
      const Clipped p = clipped(rho, advantage, s);
      r.loss += share * weight * p.value;
      (by_sequence ? by_all : r.dnow[t]) += share * weight * p.drho * rho;
      if (!by_sequence || t == begin)
        r.clip_low += double(p.low) / ratios, r.clip_high += double(p.high) / ratios;
      r.kl_old += kl_term(KlForm::k3, b.now[t], b.old[t]).value / tokens;
      if (s.beta == 0) continue;
      const KlTerm kl = kl_term(s.kl, b.now[t], b.reference[t]);
      r.loss += share * s.beta * kl.value;
      r.dnow[t] += share * s.beta * kl.dnow;
      r.kl += kl.value / tokens;
    }
    if (by_sequence)
      for (size_t t = begin; t < end; ++t) r.dnow[t] += by_all / double(b.lengths[c]);
    begin = end;
  }
  return r;
}

std::vector<double> importance_weights(std::span<const double> trainer,
                                       std::span<const double> sampler, double cap) {
  if (trainer.size() != sampler.size())
    fail("importance", "expected {} log-probabilities of the sampler, got {}", trainer.size(),
         sampler.size());
  std::vector<double> w(trainer.size());
  for (size_t i = 0; i < w.size(); ++i) w[i] = std::min(std::exp(trainer[i] - sampler[i]), cap);
  return w;
}

double adapted_beta(double beta, double kl, double target) {
  return beta * (1 + 0.1 * std::clamp(kl / target - 1, -0.2, 0.2));
}

}  // namespace hearth
