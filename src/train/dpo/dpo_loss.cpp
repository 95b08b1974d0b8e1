#include "train/dpo/dpo_loss.h"

#include <algorithm>
#include <cmath>

namespace hearth::inline train {
namespace {

double logistic(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}

// log logistic(x) without overflow on either side.
double log_logistic(double x) { return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x))); }

// A loss as a function of delta, the difference of the two log-ratios.
struct DeltaLoss {
  double value, slope;
};

// -w log s(b delta) - v log s(-b delta)
DeltaLoss mixed(double b, double delta, double w, double v) {
  return {-w * log_logistic(b * delta) - v * log_logistic(-b * delta),
          b * (-w * logistic(-b * delta) + v * logistic(b * delta))};
}

DeltaLoss loss_of(double delta, const DpoSpec& s) {
  const double b = s.beta, e = s.label_smoothing;
  switch (s.loss) {
    case DpoLoss::sigmoid:
    case DpoLoss::sigmoid_norm:
      return mixed(b, delta, 1, 0);
    case DpoLoss::hinge:
      return b * delta < 1 ? DeltaLoss{1 - b * delta, -b} : DeltaLoss{0, 0};
    case DpoLoss::ipo: {
      const double off = delta - 1 / (2 * b);
      return {off * off, 2 * off};
    }
    case DpoLoss::cdpo:
      return mixed(b, delta, 1 - e, e);
    case DpoLoss::robust: {
      const DeltaLoss m = mixed(b, delta, 1 - e, -e);
      return {m.value / (1 - 2 * e), m.slope / (1 - 2 * e)};
    }
  }
  return {0, 0};
}

}  // namespace

DpoPair dpo_pair(const CompletionSums& chosen, const CompletionSums& rejected, const DpoSpec& s) {
  // ipo and sigmoid_norm use the mean over a completion's tokens, the others the sum.
  const bool means = s.loss == DpoLoss::ipo || s.loss == DpoLoss::sigmoid_norm;
  const double share_c = means ? 1 / double(chosen.tokens) : 1;
  const double share_r = means ? 1 / double(rejected.tokens) : 1;
  const double ratio_c = chosen.policy - chosen.reference;
  const double ratio_r = rejected.policy - rejected.reference;
  const DeltaLoss l = loss_of(ratio_c * share_c - ratio_r * share_r, s);
  return {.loss = l.value,
          .d_chosen = l.slope * share_c,
          .d_rejected = -l.slope * share_r,
          .reward_chosen = s.beta * ratio_c,
          .reward_rejected = s.beta * ratio_r};
}

}  // namespace hearth::inline train
