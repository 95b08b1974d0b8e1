// The policy losses of GRPO and its variants, in double precision on the host: from the
// log-probabilities of the tokens to the loss and its gradient.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/enum_names.h"

namespace hearth::inline train {

enum class Reduction : uint8_t { grpo, bnpo, dr_grpo, dapo };
enum class RatioLevel : uint8_t { token, sequence };
enum class KlForm : uint8_t { k1, k2, k3 };
HEARTH_ENUM_NAMES(Reduction, {"grpo", "bnpo", "dr_grpo", "dapo"})
HEARTH_ENUM_NAMES(RatioLevel, {"token", "sequence"})
HEARTH_ENUM_NAMES(KlForm, {"k1", "k2", "k3"})

struct PolicyLossSpec {
  double epsilon = 0.2, epsilon_high = 0.2;  // rho is clipped to [1 - epsilon, 1 + epsilon_high]
  Reduction reduction = Reduction::dapo;
  RatioLevel ratio = RatioLevel::token;
  double beta = 0;  // weight of the KL to the reference model; 0: `reference` is not read
  KlForm kl = KlForm::k3;
  int64_t max_completion = 512;  // dr_grpo divides by it
};

// The completions of one optimizer step, or of one of its micro-batches. The tokens of a completion
// are contiguous and in order.
struct PolicyBatch {
  std::vector<int64_t> lengths = {};    // tokens per completion, at least 1
  std::vector<double> advantages = {};  // one per completion
  std::vector<double> now = {},
                      old = {};        // log-probability per token: under the policy; when sampled
  std::vector<double> reference = {};  // log-probability per token; read if beta > 0
  std::vector<double> weights = {};    // importance weight per token; empty: 1
  int64_t generation_tokens = 0;       // of the whole generation batch; dapo divides by it
  // Totals of the whole step, if this is only a part of it; 0: this is all of it.
  double step_completions = 0, step_tokens = 0;
};

struct PolicyLoss {
  double loss = 0;
  std::vector<double> dnow;  // d loss / d now
  double kl = 0;             // mean over tokens of the KL to the reference; 0 without beta
  // Fractions of the ratios (per token or per sequence) whose gradient was clipped away.
  double clip_low = 0, clip_high = 0;
};

// Per token: -min(rho A, clip(rho) A) * weight + beta * KL. rho = exp(now - old); with
// RatioLevel::sequence, the exponential of the sequence's mean of now - old. Reduced to the loss as
//   grpo     mean over completions of their token means
//   bnpo     sum / tokens of this step
//   dr_grpo  sum / (completions * max_completion)
//   dapo     sum / generation_tokens
// `room` is reused as dnow: the caller can allocate it before the log-probabilities arrive.
PolicyLoss policy_loss(const PolicyBatch&, const PolicyLossSpec&, std::vector<double> room = {});
// Mean over tokens of k3 to the policy that sampled. It is not part of the loss, so the backward
// pass need not wait for it.
double kl_to_sampler(const PolicyBatch&);

// Estimators of KL(now || reference) from one token, with d = reference - now:
//   k1 = -d, k2 = d^2 / 2, k3 = exp(d) - d - 1.
struct KlTerm {
  double value, dnow;
};
KlTerm kl_term(KlForm, double now, double reference);

// Weights that correct for the gap between the sampler's and the trainer's log-probabilities:
// truncated importance sampling, min(exp(trainer - sampler), cap).
std::vector<double> importance_weights(std::span<const double> trainer,
                                       std::span<const double> sampler, double cap);

// Adapts beta so that the KL approaches a target: each step multiplies it by
// 1 + 0.1 * clamp(kl / target - 1, -0.2, 0.2).
double adapted_beta(double beta, double kl, double target);

}  // namespace hearth::inline train
