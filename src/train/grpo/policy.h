// The policy update of GRPO: divides completions into micro-batches and accumulates the policy
// loss, its gradient and its statistics over an optimizer step.
#pragma once

#include <cmath>

#include "train/grpo/grpo_loss.h"
#include "train/grpo/rollouts.h"
#include "train/logprob_programs.h"
#include "train/step_guard.h"

namespace hearth::inline train {

// A completion with everything that its loss needs apart from the model.
struct PolicySample {
  const Rollout* rollout = nullptr;
  double advantage = 0;
  std::vector<float> old = {};        // log-probabilities of the old policy; empty: the sampler's
  std::vector<float> reference = {};  // log-probabilities of the reference; only with a KL penalty
  std::vector<double> weights = {};   // importance weights per token; empty: 1
};

// The log-probability gap between trainer and sampler, at the weights that sampled.
struct LogprobGap {
  double most = 0;  // the largest gap; a NaN stays
  double sum = 0;
  int64_t tokens = 0;
  void add(std::span<const float> trainer, std::span<const float> sampler);
  static double worse(double a, double b) { return a <= b || std::isnan(b) ? b : a; }
};

struct PolicyStep {
  double loss = 0, entropy = 0, kl = 0, kl_old = 0, clip_low = 0, clip_high = 0;
  int64_t tokens = 0;  // of completions
  int64_t fed = 0;     // through the model, including padding
};

struct PolicySpec {
  int64_t micro_tokens = 4096;
  PolicyLossSpec loss = {};
  int64_t generation_tokens = 0;
  // Denominators of the means over the step. They also count completions that were left out because
  // their advantage is 0. 0: count the samples.
  double completions = 0, tokens = 0;
};

// Batches of whole completions of similar length, at most `tokens` each unless one completion alone
// is longer. Returns indices into the rollouts.
std::vector<std::vector<size_t>> micro_batches(std::span<const Rollout* const>, int64_t tokens,
                                               int64_t context);
TokenBatch token_batch(std::span<const Rollout* const>, int64_t context);

// Log-probabilities of every completion's tokens, without gradients.
std::vector<std::vector<float>> score_rollouts(LogprobPrograms&, std::span<const Rollout* const>,
                                               int64_t micro_tokens, int64_t context);

// One update, through the guard. If `gap` is given, the log-probabilities of the forward pass are
// added to it.
PolicyStep policy_step(LogprobPrograms&, UpdateProgram&, StepGuard&, std::span<const PolicySample>,
                       const PolicySpec&, Scalars, int64_t context, LogprobGap* gap);

}  // namespace hearth::inline train
