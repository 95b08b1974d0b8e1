#include "train/grpo/grpo_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sys/error.h"

namespace hearth::inline train {

using nlohmann::ordered_json;

ordered_json found_in_step(const StepFindings& f, const GrpoConfig& config, const GrpoState& state,
                           const std::vector<std::string>& rewards) {
  const RolloutBatch& b = f.batch;
  int64_t shortest = b.rollouts[0].completion_tokens(), longest = 0, truncated = 0;
  for (const Rollout& r : b.rollouts) {
    shortest = std::min(shortest, r.completion_tokens());
    longest = std::max(longest, r.completion_tokens());
    truncated += r.truncated;
  }
  const double n = double(b.rollouts.size());
  // A value that was not measured is null: a zero would look like a measurement.
  const auto known = [](bool measured, double x) {
    return measured ? ordered_json(x) : ordered_json();
  };
  const bool rewarded = std::ranges::count(f.advantages.rewarded, 1) > 0;
  const bool trained = f.policy.tokens > 0, compared = f.gap.tokens > 0;
  ordered_json more{{"reward", known(rewarded, f.advantages.reward_mean)},
                    {"reward_std", known(rewarded, f.advantages.reward_std)},
                    {"equal_groups", double(f.advantages.equal_groups) / double(config.prompts)},
                    {"unrewarded", std::ranges::count(f.advantages.rewarded, 0)},
                    {"length", double(b.tokens) / n},
                    {"length_min", shortest},
                    {"length_max", longest},
                    {"truncated", double(truncated) / n},
                    {"kl", known(trained, f.policy.kl)},
                    {"kl_old", known(trained, f.policy.kl_old)},
                    {"beta", f.beta},
                    {"entropy", known(trained, f.policy.entropy)},
                    {"clip_low", known(trained, f.policy.clip_low)},
                    {"clip_high", known(trained, f.policy.clip_high)},
                    {"logprob_gap_max", known(compared, f.gap.most)},
                    {"logprob_gap_mean", known(compared, f.gap.sum / double(f.gap.tokens))},
                    {"logprob_gap_tokens", f.gap.tokens},
                    {"trained_tokens", f.policy.tokens},
                    {"updates", f.updates},
                    {"version", state.version},
                    {"completions", state.completions}};
  for (size_t i = 0; rewards.size() > 1 && i < rewards.size(); ++i)
    more["reward_" + std::to_string(i)] =
        b.reward_parts[i] ? ordered_json(*b.reward_parts[i]) : ordered_json();
  more.update(f.terms);
  return more;
}

ordered_json split_of_step(const StepFindings& f, const Rewards& rewards) {
  const StepSplit& s = f.seconds;
  ordered_json perf{{"rollout_ms", 1e3 * s.decode},
                    {"reward_wait_ms", 1e3 * s.reward},
                    {"score_ms", 1e3 * s.score},
                    {"train_ms", 1e3 * s.train},
                    {"rollout_tokens_per_s", double(f.batch.tokens) / s.decode},
                    {"train_tokens_per_s", s.train > 0 ? double(f.fed) / s.train : 0}};
  if (const ordered_json t = rewards.troubles(); !t.empty()) perf["troubles"] = t;
  return perf;
}

std::string step_line(const StepFindings& f, const GrpoConfig& config) {
  const double n = double(f.batch.rollouts.size()), tokens = double(f.batch.tokens);
  const StepSplit& s = f.seconds;
  const bool rewarded = std::ranges::count(f.advantages.rewarded, 1) > 0;
  std::string line = rewarded ? fmt::format("reward {:.4f} +- {:.3f}", f.advantages.reward_mean,
                                            f.advantages.reward_std)
                              : "reward none";
  line += fmt::format("  equal {:.0f}%  length {:.1f}",
                      100 * double(f.advantages.equal_groups) / double(config.prompts), tokens / n);
  if (f.policy.tokens > 0)
    line += fmt::format("  entropy {:.3f}  gap {:.1e}", f.policy.entropy, f.gap.most);
  else
    line += "  nothing to learn";
  return line + fmt::format("  rollout {:.0f} tok/s  train {:.0f} tok/s", tokens / s.decode,
                            s.train > 0 ? double(f.fed) / s.train : 0);
}

double flops_of_step(const StepFindings& f, const ModelConfig& model) {
  double tokens = 0;
  for (const Rollout& r : f.batch.rollouts) tokens += double(r.tokens.size());
  const double length = tokens / double(f.batch.rollouts.size());
  const double per_token = train_flops_per_token(model, int64_t(length));
  ModelConfig sampler = model;
  sampler.mtp = 0;  // neither rollouts nor the reference run modules
  const double forward = train_flops_per_token(sampler, int64_t(length)) / (model.lora ? 2 : 3);
  const double scored = f.beta > 0 ? double(f.policy.tokens) : 0;  // by the reference
  return per_token * double(f.fed) + forward * (tokens + scored);
}

namespace {

std::string kinds_of(const RewardFailures& f) {
  std::string text;
  for (const auto& [kind, times] : f.kinds)
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", kind, times);
  return text;
}

}  // namespace

std::vector<std::string> closing_warnings(const GrpoState& state,
                                          std::span<const RewardFailures> failures) {
  std::vector<std::string> all;
  std::string how;
  int64_t failed = 0;
  for (const RewardFailures& f : failures) {
    failed += f.failed;
    how += fmt::format("{}{}{}", how.empty() ? "" : "; ", failures.size() > 1 ? f.name + " " : "",
                       kinds_of(f));
  }
  if (!how.empty()) how = " (" + how + ")";
  if (state.unrewarded > 0)
    all.push_back(fmt::format("warning: {} of {} completions got no reward{}", state.unrewarded,
                              state.completions, how));
  else if (failed > 0)
    all.push_back(
        fmt::format("warning: {} completions of evaluations got no reward{}", failed, how));
  if (state.completions > 0 && state.version == 0) {
    const char* why = state.unrewarded == state.completions ? "no completion got a reward"
                      : state.unrewarded > 0                ? "no group had two rewards that differ"
                                             : "all rewards of every group were equal";
    all.push_back(fmt::format(
        "warning: no update was made, because {}: the weights are those the run began with", why));
  }
  return all;
}

void expect_rewards_of_most(std::span<const RewardFailures> failures,
                            const std::filesystem::path& checkpoint) {
  constexpr int64_t few = 8;
  for (const RewardFailures& f : failures)
    if (f.failed >= few && 2 * f.failed > f.asked && f.asked > 0)
      fail("grpo",
           "{} failed for {} of {} completions ({}), so the run learned from few of them; its last "
           "weights were saved in {}; correct the reward and start a new run",
           f.name, f.failed, f.asked, kinds_of(f), checkpoint.string());
}

std::string first_group(const StepFindings& f, const std::string& prompt, int64_t group) {
  std::string text = prompt + "\n";
  for (size_t i = 0; i < size_t(group); ++i) {
    const auto& reward = f.batch.rewards[i];
    text += fmt::format("[{}] {}\n", reward ? fmt::format("{:g}", *reward) : "none",
                        f.batch.rollouts[i].text);
  }
  return text;
}

namespace {

// Limits of what rollouts.jsonl keeps of a run and of a step.
constexpr int64_t kept_steps_of_run = 200, kept_groups = 2, kept_completions = 8;
constexpr int64_t with_tokens = 2;  // completions of a group
constexpr size_t kept_text = 4096;  // bytes of a prompt or completion
constexpr int64_t kept_tokens = 256;

// The beginning of a text, without a part of a character at its end.
std::string beginning(std::string_view text) {
  if (text.size() <= kept_text) return std::string(text);
  size_t end = kept_text;
  while (end > 0 && (uint8_t(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end));
}

double rounded(double x) { return std::round(x * 1e4) / 1e4; }

}  // namespace

bool keeps_rollouts(int64_t step, int64_t steps) {
  const int64_t every = std::max<int64_t>(1, steps / kept_steps_of_run);  // never fewer steps
  return step == 1 || step == steps || step % every == 0;
}

std::vector<std::string> rollout_lines(const StepFindings& f,
                                       std::span<const EncodedPrompt> prompts,
                                       const Tokenizer& tokenizer, int64_t step, int64_t group) {
  std::vector<std::string> lines;
  const int64_t groups = std::min(kept_groups, int64_t(prompts.size()));
  for (int64_t g = 0; g < groups; ++g)
    for (int64_t k = 0; k < std::min(kept_completions, group); ++k) {
      const size_t i = size_t(g * group + k);
      const Rollout& r = f.batch.rollouts[i];
      ordered_json j{{"step", step},
                     {"group", g},
                     {"index", k},
                     {"prompt", beginning(prompts[size_t(g)].row->prompt)},
                     {"completion", beginning(r.text)},
                     {"tokens", r.completion_tokens()},
                     {"truncated", r.truncated},
                     {"reward", nullptr},
                     {"advantage", f.advantages.values[i]}};
      if (const auto& reward = f.batch.rewards[i]) j["reward"] = *reward;
      if (k < with_tokens) {
        ordered_json texts = ordered_json::array(), logprobs = ordered_json::array();
        for (int64_t t = 0; t < std::min(kept_tokens, r.completion_tokens()); ++t) {
          const int32_t id = r.tokens[size_t(r.prompt_tokens + t)];
          // A model may have rows for which its tokenizer has no token.
          texts.push_back(tokenizer.has(id) ? std::string(tokenizer.bytes_of(id)) : "");
          logprobs.push_back(rounded(double(r.logprobs[size_t(t)])));
        }
        j["token_texts"] = std::move(texts), j["logprobs"] = std::move(logprobs);
      }
      lines.push_back(j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    }
  return lines;
}

}  // namespace hearth::inline train
