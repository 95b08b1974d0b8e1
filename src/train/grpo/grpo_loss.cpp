#include "train/grpo/grpo_loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sys/error.h"

namespace hearth::inline train {
namespace {

// The weight of each token of a completion in the loss.
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

// Clipping bounds for the ratios of one completion. Only one side applies, by the sign of the
// advantage.
struct Clip {
  double advantage, low, high;

  Clip(double advantage, const PolicyLossSpec& s)
      : advantage(advantage),
        low(advantage < 0 ? 1 - s.epsilon : -std::numeric_limits<double>::infinity()),
        high(advantage > 0 ? 1 + s.epsilon_high : std::numeric_limits<double>::infinity()) {}
  // -min(rho A, clip(rho) A)
  double value(double rho) const {
    return -(rho < low ? low : rho > high ? high : rho) * advantage;
  }
  // d value / d rho; 0 where it is clipped.
  double slope(double rho) const { return rho < low || rho > high ? 0 : -advantage; }
};

// Running sums of policy_loss().
struct PolicySums {
  double loss = 0, kl = 0;
  int64_t low = 0, high = 0;  // ratios clipped

  void count(const Clip& c, double rho) { low += rho<c.low, high += rho> c.high; }
};

// The tokens of one completion in a batch.
struct CompletionTokens {
  size_t begin, end;
  std::span<const double> now, old, weights;  // of the whole batch; weights may be empty
};

void add_token_ratios(PolicySums& sums, std::span<double> dnow, const CompletionTokens& c,
                      const Clip& clip, double share) {
  for (size_t t = c.begin; t < c.end; ++t) {
    const double rho = std::exp(c.now[t] - c.old[t]);
    const double scale = c.weights.empty() ? share : share * c.weights[t];
    sums.loss += scale * clip.value(rho);
    sums.count(clip, rho);
    dnow[t] += scale * clip.slope(rho) * rho;
  }
}

// All tokens share one ratio, and each contributes equally to its gradient.
void add_sequence_ratio(PolicySums& sums, std::span<double> dnow, const CompletionTokens& c,
                        const Clip& clip, double share) {
  const double n = double(c.end - c.begin);
  double log = 0, weight = 0;
  for (size_t t = c.begin; t < c.end; ++t) log += c.now[t] - c.old[t];
  for (size_t t = c.begin; t < c.end; ++t) weight += c.weights.empty() ? 1 : c.weights[t];
  const double rho = std::exp(log / n), each = share * weight * clip.slope(rho) * rho / n;
  sums.loss += share * weight * clip.value(rho);
  sums.count(clip, rho);
  for (size_t t = c.begin; t < c.end; ++t) dnow[t] += each;
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
    case KlForm::k3: {
      const double e = std::expm1(d), value = e - d;
      return {value < 0 ? 0 : value, -e};  // rounding can give values below 0
    }
  }
  return {0, 0};
}

PolicyLoss policy_loss(const PolicyBatch& b, const PolicyLossSpec& s, std::vector<double> room) {
  check_batch(b, s);
  PolicyLoss r{.dnow = std::move(room)};
  r.dnow.assign(b.now.size(), 0);
  PolicySums sums;
  const auto add = s.ratio == RatioLevel::sequence ? add_sequence_ratio : add_token_ratios;
  size_t begin = 0;
  for (size_t c = 0; c < b.lengths.size(); ++c) {
    const size_t end = begin + size_t(b.lengths[c]);
    const double share = token_share(b, s, c), kl_share = share * s.beta;
    add(sums, r.dnow, {begin, end, b.now, b.old, b.weights}, Clip(b.advantages[c], s), share);
    for (size_t t = begin; s.beta != 0 && t < end; ++t) {
      const KlTerm kl = kl_term(s.kl, b.now[t], b.reference[t]);
      sums.loss += kl_share * kl.value;
      sums.kl += kl.value;
      r.dnow[t] += kl_share * kl.dnow;
    }
    begin = end;
  }
  const double tokens = double(std::max<size_t>(b.now.size(), 1));
  const double ratios =
      s.ratio == RatioLevel::sequence ? double(std::max<size_t>(b.lengths.size(), 1)) : tokens;
  r.loss = sums.loss, r.kl = sums.kl / tokens;
  r.clip_low = double(sums.low) / ratios, r.clip_high = double(sums.high) / ratios;
  return r;
}

double kl_to_sampler(const PolicyBatch& b) {
  double sum = 0;
  for (size_t t = 0; t < b.now.size(); ++t) sum += kl_term(KlForm::k3, b.now[t], b.old[t]).value;
  return sum / double(std::max<size_t>(b.now.size(), 1));
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
  if (std::isnan(kl)) return beta;  // of a step that is skipped
  return beta * (1 + 0.1 * std::clamp(kl / target - 1, -0.2, 0.2));
}

}  // namespace hearth::inline train
