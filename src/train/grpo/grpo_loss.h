// The policy loss of GRPO and its kin over completions, in double on the host: from the
// log-probabilities of tokens to the loss and its gradient over them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace hearth::inline train {

enum class Reduction : uint8_t { grpo, bnpo, dr_grpo, dapo };
enum class RatioLevel : uint8_t { token, sequence };
enum class KlForm : uint8_t { k1, k2, k3 };
inline std::span<const std::string_view> names_of(Reduction) {
  static constexpr auto names =
      std::to_array<std::string_view>({"grpo", "bnpo", "dr_grpo", "dapo"});
  return names;
}
inline std::span<const std::string_view> names_of(RatioLevel) {
  static constexpr auto names = std::to_array<std::string_view>({"token", "sequence"});
  return names;
}
inline std::span<const std::string_view> names_of(KlForm) {
  static constexpr auto names = std::to_array<std::string_view>({"k1", "k2", "k3"});
  return names;
}

struct PolicyLossSpec {
  double epsilon = 0.2, epsilon_high = 0.2;  // rho is clipped to [1 - epsilon, 1 + epsilon_high]
  Reduction reduction = Reduction::dapo;
  RatioLevel ratio = RatioLevel::token;
  double beta = 0;  // of the KL to the reference; 0: none is read
  KlForm kl = KlForm::k3;
  int64_t max_completion = 512;  // dr_grpo divides by it
};

// Completions of one optimizer step, or some of them: those of a micro-batch. Tokens of one lie
// side by side, in order.
struct PolicyBatch {
  std::vector<int64_t> lengths = {};    // tokens of each completion, at least 1
  std::vector<double> advantages = {};  // of each completion
  std::vector<double> now = {},
                      old = {};        // log-probability of each token: being trained; that sampled
  std::vector<double> reference = {};  // read with beta
  std::vector<double> weights = {};    // of each token's policy term (importance); empty: 1
  int64_t generation_tokens = 0;       // of the whole generation batch: what dapo divides by
  // Of the whole step, where these are some of it; 0: these are all.
  double step_completions = 0, step_tokens = 0;
};

struct PolicyLoss {
  double loss = 0;
  std::vector<double> dnow;  // d loss / d now
  double kl = 0;             // mean over tokens, to the reference; 0 without beta
  // Shares of ratios (of tokens or of sequences) where clipping took the gradient away.
  double clip_low = 0, clip_high = 0;
};

// Per token -min(rho A, clip(rho) A) * weight + beta * KL, rho = exp(now - old), or, by sequence,
// the exponential of its mean; reduced as
//   grpo     mean over completions of their token means
//   bnpo     sum / tokens of this step
//   dr_grpo  sum / (completions * max_completion)
//   dapo     sum / generation_tokens
// `room` becomes dnow: memory that was made while there was time.
PolicyLoss policy_loss(const PolicyBatch&, const PolicyLossSpec&, std::vector<double> room = {});
// Mean over tokens of k3 to the policy that sampled. No part of the loss: a backward pass need not
// wait for it.
double kl_to_sampler(const PolicyBatch&);

// Estimates of KL(now || reference) by one token: with d = reference - now
//   k1 = -d, k2 = d^2 / 2, k3 = exp(d) - d - 1.
struct KlTerm {
  double value, dnow;
};
KlTerm kl_term(KlForm, double now, double reference);

// Weights that correct for a sampler whose log-probabilities are not the trainer's: truncated
// importance, min(exp(trainer - sampler), cap).
std::vector<double> importance_weights(std::span<const double> trainer,
                                       std::span<const double> sampler, double cap);

// The coefficient that brings the KL to a target: a step multiplies it by
// 1 + 0.1 * clamp(kl / target - 1, -0.2, 0.2).
double adapted_beta(double beta, double kl, double target);

}  // namespace hearth::inline train
