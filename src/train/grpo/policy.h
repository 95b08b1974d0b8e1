// Policy: a model in training by its own rollouts. Cuts completions into batches for the model and
// adds up the policy loss, its gradient and its statistics over an optimizer step.
#pragma once

#include <cmath>

#include "train/grpo/grpo_loss.h"
#include "train/grpo/rollouts.h"
#include "train/logprob_programs.h"
#include "train/step_guard.h"

namespace hearth::inline train {

// A completion with what its loss needs beside the model.
struct PolicySample {
  const Rollout* rollout = nullptr;
  double advantage = 0;
  std::vector<float> old = {};        // of each token: what its ratio is to; empty: the sampler's
  std::vector<float> reference = {};  // with a KL
  std::vector<double> weights = {};   // importance; empty: 1
};

// How far the trainer's log-probabilities are from the sampler's, at the weights that sampled.
struct LogprobGap {
  double most = 0;  // one that is no number stays
  double sum = 0;
  int64_t tokens = 0;
  void add(std::span<const float> trainer, std::span<const float> sampler);
  static double worse(double a, double b) { return a <= b || std::isnan(b) ? b : a; }
};

struct PolicyStep {
  double loss = 0, entropy = 0, kl = 0, kl_old = 0, clip_low = 0, clip_high = 0;
  int64_t tokens = 0;  // of completions
  int64_t fed = 0;     // through the model, padding included
};

struct PolicySpec {
  int64_t micro_tokens = 4096;
  PolicyLossSpec loss = {};
  int64_t generation_tokens = 0;
  // What a mean over the step is over, those left out for want of an advantage included; 0: the
  // samples.
  double completions = 0, tokens = 0;
};

// Batches of whole completions of like length, at most `tokens` each where one alone allows it.
// Gives places in `samples`.
std::vector<std::vector<size_t>> micro_batches(std::span<const Rollout* const>, int64_t tokens,
                                               int64_t context);
TokenBatch token_batch(std::span<const Rollout* const>, int64_t context);

// Log-probabilities of every completion's tokens, without gradients.
std::vector<std::vector<float>> score_rollouts(LogprobPrograms&, std::span<const Rollout* const>,
                                               int64_t micro_tokens, int64_t context);

// One update, through the guard. `gap`, where given, gains what the forward pass finds.
PolicyStep policy_step(LogprobPrograms&, UpdateProgram&, StepGuard&, std::span<const PolicySample>,
                       const PolicySpec&, const Scalars&, int64_t context, LogprobGap* gap);

}  // namespace hearth::inline train
