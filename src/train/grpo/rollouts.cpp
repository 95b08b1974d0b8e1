#include "train/grpo/rollouts.h"

#include "data/permutation.h"
#include "sys/clock.h"
#include "sys/error.h"

namespace hearth::inline train {
namespace {

Request rollout_request(const EncodedPrompt& p, const RolloutSpec& spec, size_t place) {
  Request r;
  r.prompt = p.tokens;
  r.n = int(spec.group);
  r.sampling.temperature = spec.temperature;
  r.sampling.max_tokens = spec.max_tokens;
  r.sampling.stop = spec.stop;
  r.sampling.stop_ids = spec.stop_ids;
  r.sampling.ignore_eos = spec.ignore_eos;
  r.sampling.seed = mix64(mix64(spec.seed) ^ uint64_t(place));
  r.sampling.logprobs = 0;  // of the sampled token only
  r.sampling.logprobs_at_temperature = true;
  return r;
}

Rollout rollout_of(Completion c, const EncodedPrompt& p, size_t place) {
  Rollout r{.prompt = place,
            .tokens = p.tokens,
            .prompt_tokens = int64_t(p.tokens.size()),
            .logprobs = {},
            .text = std::move(c.text),
            .truncated = c.finish_reason == "length"};
  r.tokens.insert(r.tokens.end(), c.tokens.begin(), c.tokens.end());
  for (const TokenLogprob& l : c.logprobs) r.logprobs.push_back(l.logprob);
  return r;
}

std::vector<RewardText> texts_of(std::span<const Rollout> group) {
  std::vector<RewardText> all;
  for (const Rollout& r : group) all.push_back({r.text, r.completion_tokens()});
  return all;
}

bool asked_to_stop(const RolloutSpec& s) { return s.interrupt && *s.interrupt != 0; }

// Decodes all groups; calls done(place) when all completions of that prompt have finished.
void decode_groups(Engine& engine, std::span<const EncodedPrompt> prompts, const RolloutSpec& spec,
                   const std::function<void(size_t)>& done, std::vector<Rollout>& rollouts) {
  size_t left = prompts.size();
  bool cut = false;
  std::exception_ptr error;
  rollouts.assign(prompts.size() * size_t(spec.group), {});
  for (size_t i = 0; i < prompts.size(); ++i) {
    Listener l;
    l.done = [&, i](std::vector<Completion> all, std::exception_ptr e) {
      --left;
      if (e) error = e;
      if (error || cut) return;
      for (size_t k = 0; k < all.size(); ++k)
        rollouts[i * size_t(spec.group) + k] = rollout_of(std::move(all[k]), prompts[i], i);
      if (done) done(i);
    };
    engine.submit(rollout_request(prompts[i], spec, i), std::move(l));
  }
  while (left > 0) {
    if (!cut && asked_to_stop(spec)) engine.cancel_all(), cut = true;
    engine.step();
  }
  if (error) std::rethrow_exception(error);
  if (cut) throw Interrupted{};
}

}  // namespace

GroupRewards await_rewards(std::future<GroupRewards>& f, const RolloutSpec& spec) {
  while (f.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready)
    if (asked_to_stop(spec)) throw Interrupted{};
  return f.get();
}

RolloutBatch make_rollouts(Engine& engine, std::span<const EncodedPrompt> prompts, Rewards& rewards,
                           const RolloutSpec& spec, uint64_t version) {
  RolloutBatch b;
  b.version = version;
  const auto begin = Clock::now();
  std::vector<std::future<GroupRewards>> scores(prompts.size());
  decode_groups(
      engine, prompts, spec,
      [&](size_t i) {
        const std::span group =
            std::span(b.rollouts).subspan(i * size_t(spec.group), size_t(spec.group));
        scores[i] = rewards.submit(*prompts[i].row, texts_of(group));
      },
      b.rollouts);
  b.decode_s = seconds_since(begin);
  const auto decoded = Clock::now();
  std::vector<double> sums(rewards.names().size()), counts(sums.size());
  for (std::future<GroupRewards>& f : scores) {
    const GroupRewards g = await_rewards(f, spec);
    b.rewards.insert(b.rewards.end(), g.total.begin(), g.total.end());
    for (size_t t = 0; t < sums.size(); ++t)
      for (const double x : g.parts[t]) sums[t] += x, counts[t] += 1;
  }
  for (size_t t = 0; t < sums.size(); ++t)
    b.reward_parts.push_back(counts[t] > 0 ? std::optional(sums[t] / counts[t]) : std::nullopt);
  b.reward_s = seconds_since(decoded);
  for (const Rollout& r : b.rollouts) {
    if (r.logprobs.size() != size_t(r.completion_tokens()))
      fail("rollouts", "expected a log-probability of each of {} tokens, got {}",
           r.completion_tokens(), r.logprobs.size());
    b.tokens += r.completion_tokens();
  }
  return b;
}

std::vector<Rollout> greedy_completions(Engine& engine, std::span<const EncodedPrompt> prompts,
                                        const RolloutSpec& spec) {
  RolloutSpec greedy = spec;
  greedy.group = 1, greedy.temperature = 0;
  std::vector<Rollout> all;
  decode_groups(engine, prompts, greedy, {}, all);
  return all;
}

}  // namespace hearth::inline train
