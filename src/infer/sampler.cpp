#include "infer/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/math.h"
#include "sys/error.h"

namespace hearth::inline infer {
namespace {

constexpr double nothing = -std::numeric_limits<double>::infinity();

void check_range(const char* what, double x, double low, double high) {
  if (!(x >= low && x <= high))
    fail_usage(what, "expected a number from {} to {}, got {}", low, high, x);
}

void check_tokens(const char* what, int64_t token, int64_t vocab) {
  if (token < 0 || token >= vocab)
    fail_usage(what, "expected token ids below {}, got {}", vocab, token);
}

// The maximum, in a form that compilers vectorise.
float largest_of(std::span<const float> x) {
  constexpr size_t parts = 16;
  float most[parts];
  std::fill(most, most + parts, -std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + parts <= x.size(); i += parts)
    for (size_t j = 0; j < parts; ++j) most[j] = x[i + j] <= most[j] ? most[j] : x[i + j];
  float r = -std::numeric_limits<float>::infinity();
  for (const float m : most) r = m <= r ? r : m;
  for (; i < x.size(); ++i) r = x[i] <= r ? r : x[i];
  return r;
}

void expect_finite(std::span<const float> logits) {
  bool good = true;
  for (const float x : logits) good &= x < std::numeric_limits<float>::infinity();
  for (size_t i = 0; !good && i < logits.size(); ++i)
    if (!(logits[i] < std::numeric_limits<float>::infinity()))
      fail("sampler", "expected finite logits, got {} for token {}: the weights may be damaged",
           logits[i], i);
}

bool likelier(const Sampler::Choice& a, const Sampler::Choice& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

double total_weight(std::span<const Sampler::Choice> choices) {
  double sum = 0;
  for (const Sampler::Choice& c : choices) sum += c.weight;
  return sum;
}

// The number of most likely tokens needed to reach the fraction p of all weight; sorts only about
// as many.
size_t reach(std::vector<Sampler::Choice>& choices, double p) {
  const double target = p * total_weight(choices);
  double sum = 0;
  for (size_t sorted = 0, next = 64; sorted < choices.size(); next *= 4) {
    const size_t end = std::min(next, choices.size());
    const auto begin = choices.begin() + ptrdiff_t(sorted);
    std::partial_sort(begin, choices.begin() + ptrdiff_t(end), choices.end(), likelier);
    for (; sorted < end; ++sorted)
      if ((sum += choices[sorted].weight) >= target) return sorted + 1;
  }
  return choices.size();
}

void keep_likeliest(std::vector<Sampler::Choice>& choices, size_t count) {
  if (count >= choices.size()) return;
  std::nth_element(choices.begin(), choices.begin() + ptrdiff_t(count), choices.end(), likelier);
  choices.resize(count);
}

}  // namespace

void SamplingSpec::check(int64_t vocab) const {
  constexpr double huge = std::numeric_limits<float>::max();
  for (const auto& [token, bias] : logit_bias) {
    check_tokens("logit_bias", token, vocab);
    check_range("logit_bias", bias, -huge, huge);
  }
  check_range("repetition_penalty", repetition_penalty, std::numeric_limits<float>::min(), huge);
  check_range("presence_penalty", presence_penalty, -huge, huge);
  check_range("frequency_penalty", frequency_penalty, -huge, huge);
  check_range("temperature", temperature, 0, 100);
  check_range("min_p", min_p, 0, 1);
  check_range("top_p", top_p, 0, 1);
  if (top_k < 0) fail_usage("top_k", "expected 0 (off) or more, got {}", top_k);
  if (max_tokens < -1)
    fail_usage("max_tokens", "expected -1 (until the context is full) or a count, got {}",
               max_tokens);
  if (min_tokens < 0 || (max_tokens >= 0 && min_tokens > max_tokens))
    fail_usage("min_tokens", "expected 0 to max_tokens, got {}", min_tokens);
  if (logprobs < -1 || logprobs > vocab)
    fail_usage("logprobs", "expected -1 (none) or a count up to {}, got {}", vocab, logprobs);
  if (logprobs_at_temperature && logprobs > 0)
    fail_usage("logprobs", "expected 0 with logprobs_at_temperature, got {}", logprobs);
  for (const int32_t token : stop_ids) check_tokens("stop_ids", token, vocab);
  for (const std::string& s : stop)
    if (s.empty()) fail_usage("stop", "expected strings of at least one byte, got an empty one");
}

TokenLogprob token_logprob(std::span<const float> logits, int32_t token, int64_t top,
                           std::optional<LogSum> given) {
  double lse = 0;
  if (!given) {
    const double most = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float x : logits) sum += std::exp(double(x) - most);
    lse = most + std::log(sum);
  }
  const auto of = [&](int32_t id) {
    const float x = logits[size_t(id)];
    return given ? -(given->log + (given->max - x)) : float(double(x) - lse);
  };

  TokenLogprob r{token, of(token), {}};
  if (top <= 0) return r;
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto end = ids.begin() + std::min<ptrdiff_t>(ptrdiff_t(top), ptrdiff_t(ids.size()));
  std::partial_sort(ids.begin(), end, ids.end(), [&](int32_t a, int32_t b) {
    const float x = logits[size_t(a)], y = logits[size_t(b)];
    return x != y ? x > y : a < b;
  });
  for (auto id = ids.begin(); id != end; ++id) r.top.emplace_back(*id, of(*id));
  return r;
}

uint64_t sampling_bits(uint64_t seed, uint32_t sample, uint64_t position) {
  constexpr uint32_t salt = 0x5a3791e5u;  // separate from other philox uses of this seed
  const Words r = philox({{uint32_t(position), uint32_t(position >> 32), sample, salt}},
                         uint32_t(seed), uint32_t(seed >> 32));
  return uint64_t(r.w[0]) << 32 | r.w[1];
}

double sampling_uniform(uint64_t seed, uint32_t sample, uint64_t position) {
  return double(sampling_bits(seed, sample, position) >> 11) * 0x1p-53;
}

Sampler::Sampler(const SamplingSpec& spec, std::span<const int32_t> prompt, uint32_t sample)
    : spec_(&spec), sample_(sample) {
  for (const int32_t token : prompt) seen_.emplace(token, 0);
}

void Sampler::accept(int32_t token) { ++seen_[token]; }

std::span<const double> Sampler::adjusted(std::span<const float> logits,
                                          std::span<const int32_t> barred) {
  expect_finite(logits);
  logits_.assign(logits.begin(), logits.end());
  for (const auto& [token, bias] : spec_->logit_bias) logits_[size_t(token)] += bias;
  for (const auto& [token, count] : seen_) {
    double& x = logits_[size_t(token)];
    x = x > 0 ? x / spec_->repetition_penalty : x * spec_->repetition_penalty;
    if (count > 0) x -= spec_->presence_penalty + double(count) * spec_->frequency_penalty;
  }
  for (const int32_t token : barred) logits_[size_t(token)] = nothing;
  return logits_;
}

std::span<const Sampler::Choice> Sampler::choices(std::span<const float> logits,
                                                  std::span<const int32_t> barred) {
  adjusted(logits, barred);
  const auto best = std::max_element(logits_.begin(), logits_.end());  // the first among equals
  if (*best == nothing)
    fail("sampler", "no token can be sampled: logit_bias or min_tokens excludes all of them");
  choices_.clear();
  if (spec_->temperature == 0) {
    choices_.push_back({int32_t(best - logits_.begin()), *best, 1});
    return choices_;
  }
  const double temperature = spec_->temperature;
  for (size_t i = 0; i < logits_.size(); ++i) {
    const double weight =
        std::exp((logits_[i] - *best) / temperature);  // the most likely token has weight 1
    if (weight > 0 && weight >= spec_->min_p)
      choices_.push_back({int32_t(i), logits_[i] / temperature, weight});
  }
  if (spec_->top_k > 0) keep_likeliest(choices_, size_t(spec_->top_k));
  if (spec_->top_p < 1) choices_.resize(reach(choices_, spec_->top_p));
  if (spec_->top_k > 0 || spec_->top_p < 1)
    std::sort(choices_.begin(), choices_.end(),
              [](const Choice& a, const Choice& b) { return a.token < b.token; });
  return choices_;
}

int32_t Sampler::draw(std::span<const float> logits, uint64_t position,
                      std::span<const int32_t> barred) {
  if (spec_->temperature == 0 && spec_->by_row() && barred.empty()) {
    expect_finite(logits);
    return int32_t(std::ranges::find(logits, largest_of(logits)) - logits.begin());
  }
  const std::span<const Choice> all = choices(logits, barred);
  if (all.size() == 1) return all[0].token;
  const double at = sampling_uniform(spec_->seed, sample_, position) * total_weight(all);
  double sum = 0;
  for (const Choice& c : all)
    if ((sum += c.weight) > at) return c.token;
  return all.back().token;
}

}  // namespace hearth::inline infer
