#include "infer/sampler.h"

#include <algorithm>
#include <bit>
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

// Few tokens are allowed: their ids below `size`, ascending.
void list_allowed(std::vector<int32_t>& ids, const AllowedTokens& allowed, size_t size) {
  for (size_t begin = 0; begin < size; begin += 32)
    for (uint32_t left = allowed.bits[begin / 32]; left; left &= left - 1)
      if (const size_t id = begin + size_t(std::countr_zero(left)); id < size)
        ids.push_back(int32_t(id));
  for (const int32_t id : allowed.also)
    if (const auto at = std::ranges::lower_bound(ids, id);
        size_t(id) < size && (at == ids.end() || *at != id))
      ids.insert(at, id);
}

// Most tokens are allowed: all logits, and nothing for the others.
void assign_dense(std::vector<double>& to, std::span<const float> logits,
                  const AllowedTokens& allowed) {
  to.assign(logits.begin(), logits.end());
  for (size_t begin = 0; begin < logits.size(); begin += 32)
    for (uint32_t left = ~allowed.bits[begin / 32]; left; left &= left - 1)
      if (const size_t id = begin + size_t(std::countr_zero(left)); id < logits.size())
        to[id] = nothing;
  for (const int32_t id : allowed.also)
    if (size_t(id) < logits.size()) to[size_t(id)] = double(logits[size_t(id)]);
}

// Whether it is faster to pass over the other tokens than to list the allowed ones.
bool is_dense(const AllowedTokens& allowed, size_t size) {
  size_t count = 0;
  for (const uint32_t word : allowed.bits) count += size_t(std::popcount(word));
  return 8 * count > 7 * size;
}

// The most likely allowed token, the lowest id among equals. Whole words of the mask are compared
// at once, in a form that compilers vectorise.
int32_t best_allowed(std::span<const float> logits, const AllowedTokens& allowed) {
  constexpr float none = -std::numeric_limits<float>::infinity();
  constexpr size_t width = 32;
  const size_t words = logits.size() / width, rest = words * width;
  float lanes[width];
  std::fill(lanes, lanes + width, none);
  for (size_t w = 0; w < words; ++w) {
    const uint32_t bits = allowed.bits[w];
    if (bits == 0) continue;
    const float* x = logits.data() + w * width;
    for (size_t j = 0; j < width; ++j) {
      const uint32_t in = -(bits >> j & 1);  // all ones: the token is allowed
      const float v = std::bit_cast<float>((std::bit_cast<uint32_t>(x[j]) & in) |
                                           (std::bit_cast<uint32_t>(none) & ~in));
      lanes[j] = v > lanes[j] ? v : lanes[j];
    }
  }
  float most = *std::max_element(lanes, lanes + width);
  size_t best = logits.size();
  for (size_t w = 0; w < words && best == logits.size() && most > none; ++w) {
    if (allowed.bits[w] == 0) continue;
    uint32_t here = 0;
    const float* x = logits.data() + w * width;
    for (size_t j = 0; j < width; ++j) here |= uint32_t(x[j] == most);
    for (size_t j = 0; here && j < width && best == logits.size(); ++j)
      if (x[j] == most && (allowed.bits[w] & 1u << j)) best = w * width + j;
  }
  const auto consider = [&](size_t id) {
    if (logits[id] > most || (logits[id] == most && id < best)) most = logits[id], best = id;
  };
  for (size_t id = rest; id < logits.size(); ++id)
    if (allowed.has(id)) consider(id);
  for (const int32_t id : allowed.also)
    if (size_t(id) < logits.size()) consider(size_t(id));
  if (best == logits.size()) fail("sampler", "the constraint allows no token");
  return int32_t(best);
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
  for (const int32_t token : stop_ids) check_tokens("stop_token_ids", token, vocab);
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
  if (!spec.penalises()) return;
  for (const int32_t token : prompt) seen_.emplace(token, 0);
}

void Sampler::accept(int32_t token) {
  if (spec_->penalises()) ++seen_[token];
}

std::span<const double> Sampler::adjusted(std::span<const float> logits,
                                          std::span<const int32_t> barred,
                                          const AllowedTokens& allowed) {
  expect_finite(logits);
  ids_.clear();
  if (allowed.all()) {
    logits_.assign(logits.begin(), logits.end());
  } else if (is_dense(allowed, logits.size())) {
    assign_dense(logits_, logits, allowed);
  } else {
    list_allowed(ids_, allowed, logits.size());
    logits_.assign(logits.size(), nothing);
    for (const int32_t id : ids_) logits_[size_t(id)] = double(logits[size_t(id)]);
  }
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
                                                  std::span<const int32_t> barred,
                                                  const AllowedTokens& allowed) {
  adjusted(logits, barred, allowed);
  // The first among equals.
  const size_t best = size_t(std::max_element(logits_.begin(), logits_.end()) - logits_.begin());
  if (logits_[best] == nothing)
    fail("sampler",
         "no token can be sampled: logit_bias, min_tokens or the constraint excludes all of them");
  choices_.clear();
  if (spec_->temperature == 0) {
    choices_.push_back({int32_t(best), logits_[best], 1});
    return choices_;
  }
  const double temperature = spec_->temperature, most = logits_[best];
  const auto consider = [&](size_t i) {
    const double weight =
        std::exp((logits_[i] - most) / temperature);  // the most likely token has weight 1
    if (weight > 0 && weight >= spec_->min_p)
      choices_.push_back({int32_t(i), logits_[i] / temperature, weight});
  };
  for (const int32_t id : ids_) consider(size_t(id));
  for (size_t i = 0; ids_.empty() && i < logits_.size(); ++i)
    if (logits_[i] != nothing) consider(i);
  if (spec_->top_k > 0) keep_likeliest(choices_, size_t(spec_->top_k));
  if (spec_->top_p < 1) choices_.resize(reach(choices_, spec_->top_p));
  if (spec_->top_k > 0 || spec_->top_p < 1)
    std::sort(choices_.begin(), choices_.end(),
              [](const Choice& a, const Choice& b) { return a.token < b.token; });
  return choices_;
}

int32_t Sampler::draw(std::span<const float> logits, uint64_t position,
                      std::span<const int32_t> barred, const AllowedTokens& allowed) {
  if (spec_->temperature == 0 && spec_->by_row() && barred.empty()) {
    expect_finite(logits);
    if (!allowed.all()) return best_allowed(logits, allowed);
    return int32_t(std::ranges::find(logits, largest_of(logits)) - logits.begin());
  }
  const std::span<const Choice> all = choices(logits, barred, allowed);
  if (all.size() == 1) return all[0].token;
  const double at = sampling_uniform(spec_->seed, sample_, position) * total_weight(all);
  double sum = 0;
  for (const Choice& c : all)
    if ((sum += c.weight) > at) return c.token;
  return all.back().token;
}

}  // namespace hearth::inline infer
