#include "train/grpo/policy.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace hearth::inline train {
namespace {

// Tokens of a completion that are fed to the model: all but the last.
int64_t fed_length(const Rollout& r) { return int64_t(r.tokens.size()) - 1; }

// The largest number of completions whose batch has at most n rows.
int64_t whole_sequences(int64_t n) {
  int64_t m = n;
  while (bucket(m, buckets::completions) > n) --m;
  return m;
}

// What the loss of a micro-batch needs apart from its log-probabilities; `tokens` is the total of
// the step.
PolicyBatch policy_batch(std::span<const PolicySample> samples, std::span<const size_t> micro,
                         const PolicySpec& spec, int64_t tokens) {
  PolicyBatch b;
  b.step_completions = spec.completions > 0 ? spec.completions : double(samples.size());
  b.step_tokens = spec.tokens > 0 ? spec.tokens : double(tokens);
  b.generation_tokens = spec.generation_tokens;
  const auto append = [](std::vector<double>& to, const auto& v) {
    to.insert(to.end(), v.begin(), v.end());
  };
  for (const size_t i : micro) {
    const PolicySample& s = samples[i];
    b.lengths.push_back(s.rollout->completion_tokens());
    b.advantages.push_back(s.advantage);
    append(b.old, s.old.empty() ? s.rollout->logprobs : s.old);
    append(b.reference, s.reference);
    append(b.weights, s.weights);
  }
  b.now.resize(b.old.size());  // touches the pages before the log-probabilities arrive
  return b;
}

void add_gap(LogprobGap& gap, std::span<const float> trainer,
             std::span<const Rollout* const> rollouts) {
  size_t at = 0;
  for (const Rollout* r : rollouts) {
    gap.add(trainer.subspan(at, r->logprobs.size()), r->logprobs);
    at += r->logprobs.size();
  }
}

}  // namespace

void LogprobGap::add(std::span<const float> trainer, std::span<const float> sampler) {
  for (size_t i = 0; i < trainer.size(); ++i) {
    const double gap = std::abs(double(trainer[i]) - double(sampler[i]));
    most = worse(most, gap);
    sum += gap, ++tokens;
  }
}

std::vector<std::vector<size_t>> micro_batches(std::span<const Rollout* const> all, int64_t tokens,
                                               int64_t context) {
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater{}, [&](size_t i) { return fed_length(*all[i]); });
  std::vector<std::vector<size_t>> batches;
  for (size_t at = 0; at < order.size();) {
    const int64_t T = bucket(fed_length(*all[order[at]]), buckets::completion_tokens, context);
    const int64_t most = std::max<int64_t>(1, tokens / T);
    const size_t B = std::min(order.size() - at, size_t(whole_sequences(most)));
    batches.emplace_back(order.begin() + ptrdiff_t(at), order.begin() + ptrdiff_t(at + B));
    at += B;
  }
  return batches;
}

TokenBatch token_batch(std::span<const Rollout* const> rollouts, int64_t context) {
  TokenBatch b;
  int64_t longest = 1;
  for (const Rollout* r : rollouts) longest = std::max(longest, fed_length(*r));
  b.B = bucket(int64_t(rollouts.size()), buckets::completions);
  b.T = bucket(longest, buckets::completion_tokens, context);
  b.tokens.assign(size_t(b.B * b.T), 0), b.counts.assign(b.tokens.size(), 0);
  int64_t asked = 0;
  for (const Rollout* r : rollouts) asked += r->completion_tokens();
  b.rows.reserve(size_t(asked)), b.targets.reserve(size_t(asked));
  for (int64_t i = 0; i < int64_t(rollouts.size()); ++i) {
    const Rollout& r = *rollouts[size_t(i)];
    std::copy_n(r.tokens.begin(), fed_length(r), b.tokens.begin() + i * b.T);
    std::fill_n(b.counts.begin() + i * b.T, fed_length(r), 1);
    b.targets.insert(b.targets.end(), r.tokens.begin() + r.prompt_tokens, r.tokens.end());
    for (int64_t t = r.prompt_tokens; t < int64_t(r.tokens.size()); ++t)
      b.rows.push_back(int32_t(i * b.T + t - 1));
  }
  return b;
}

std::vector<std::vector<float>> score_rollouts(LogprobPrograms& programs,
                                               std::span<const Rollout* const> rollouts,
                                               int64_t micro_tokens, int64_t context) {
  std::vector<std::vector<float>> all(rollouts.size());
  for (const std::vector<size_t>& micro : micro_batches(rollouts, micro_tokens, context)) {
    std::vector<const Rollout*> of;
    for (const size_t i : micro) of.push_back(rollouts[i]);
    const Logprobs p = programs.score(token_batch(of, context));
    auto next = p.logprob.begin();
    for (const size_t i : micro) {
      const auto end = next + ptrdiff_t(rollouts[i]->completion_tokens());
      all[i].assign(next, end);
      next = end;
    }
  }
  return all;
}

PolicyStep policy_step(LogprobPrograms& programs, UpdateProgram& update, StepGuard& guard,
                       std::span<const PolicySample> samples, const PolicySpec& spec,
                       Scalars scalars, int64_t context, LogprobGap* gap) {
  std::vector<const Rollout*> rollouts;
  PolicyStep step;
  for (const PolicySample& s : samples) {
    rollouts.push_back(s.rollout);
    step.tokens += s.rollout->completion_tokens();
  }
  scalars.inv_targets = 1 / float(step.tokens);
  bool first = true;
  for (const std::vector<size_t>& micro : micro_batches(rollouts, spec.micro_tokens, context)) {
    std::vector<const Rollout*> of;
    for (const size_t i : micro) of.push_back(rollouts[i]);
    const TokenBatch tokens = token_batch(of, context);
    programs.begin(tokens, first, scalars);
    first = false;
    // While the device computes, the host does the work that does not need the log-probabilities,
    // and after backward() the work that the gradient does not need.
    PolicyBatch b = policy_batch(samples, micro, spec, step.tokens);
    std::vector<double> room(b.now.size());
    const std::span<const float> now = programs.logprob();
    b.now.assign(now.begin(), now.end());
    const PolicyLoss loss = policy_loss(b, spec.loss, std::move(room));
    programs.backward(loss.dnow, scalars);

    if (gap) add_gap(*gap, now, of);
    const double share = double(b.now.size()) / double(step.tokens);
    const double ratios = spec.loss.ratio == RatioLevel::sequence
                              ? double(b.lengths.size()) / double(samples.size())
                              : share;
    step.loss += loss.loss;
    step.kl += share * loss.kl, step.kl_old += share * kl_to_sampler(b);
    step.clip_low += ratios * loss.clip_low, step.clip_high += ratios * loss.clip_high;
    for (const float h : programs.entropy()) step.entropy += double(h) / double(step.tokens);
    step.fed += tokens.B * tokens.T;
  }
  guard.update(update, scalars, step.loss);
  guard.settle();  // the rollouts that follow need the new weights anyway
  return step;
}

}  // namespace hearth::inline train
