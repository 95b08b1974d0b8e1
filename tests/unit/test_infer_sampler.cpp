// The sampler: each control on logits made by hand, ties, extremes, and draws against the
// distribution they are drawn from.
#include "infer/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "sys/error.h"

namespace hearth {
namespace {

constexpr float inf = std::numeric_limits<float>::infinity();
using Logits = std::vector<float>;

// Probabilities by id, 0 for tokens that cannot be drawn.
std::vector<double> probabilities(const SamplingSpec& spec, const Logits& logits,
                                  std::vector<int32_t> prompt = {},
                                  std::vector<int32_t> completion = {},
                                  std::vector<int32_t> barred = {}) {
  spec.check(int64_t(logits.size()));
  Sampler s(spec, prompt, 0);
  for (int32_t id : completion) s.accept(id);
  std::vector<double> p(logits.size());
  double sum = 0;
  for (const auto& c : s.choices(logits, barred)) sum += p[size_t(c.token)] = c.weight;
  for (double& x : p) x /= sum;
  return p;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-7) << i;
}

// Logits of given probabilities.
Logits log_of(const std::vector<double>& p) {
  Logits l;
  for (double x : p) l.push_back(float(std::log(x)));
  return l;
}

const std::vector<double> half{0.5, 0.1, 0.25, 0.15};

TEST(Sampler, PlainIsTheSoftmax) { expect_near(probabilities({}, log_of(half)), half); }

TEST(Sampler, TemperatureIsAPower) {
  std::vector<double> squares;
  for (double p : half) squares.push_back(p * p / (0.25 + 0.01 + 0.0625 + 0.0225));
  expect_near(probabilities({.temperature = 0.5f}, log_of(half)), squares);
}

TEST(Sampler, GreedyTakesTheLowestOfEquals) {
  expect_near(probabilities({.temperature = 0}, {1, 3, 2, 3}), {0, 1, 0, 0});
  expect_near(probabilities({.temperature = 0}, {-1, -1, -1}), {1, 0, 0});
}

TEST(Sampler, TopK) {
  expect_near(probabilities({.top_k = 1}, log_of(half)), {1, 0, 0, 0});
  expect_near(probabilities({.top_k = 2}, log_of(half)), {2 / 3., 0, 1 / 3., 0});
  expect_near(probabilities({.top_k = 4}, log_of(half)), half);
  expect_near(probabilities({.top_k = 100}, log_of(half)), half);
  expect_near(probabilities({.top_k = 2}, {1, 1, 1, 1}), {0.5, 0.5, 0, 0});
}

TEST(Sampler, TopP) {
  expect_near(probabilities({.top_p = 0}, log_of(half)), {1, 0, 0, 0});
  expect_near(probabilities({.top_p = 1e-9f}, log_of(half)), {1, 0, 0, 0});
  expect_near(probabilities({.top_p = 0.49f}, log_of(half)), {1, 0, 0, 0});
  expect_near(probabilities({.top_p = 0.51f}, log_of(half)), {2 / 3., 0, 1 / 3., 0});
  expect_near(probabilities({.top_p = 0.8f}, log_of(half)), {5 / 9., 0, 2.5 / 9, 1.5 / 9});
  expect_near(probabilities({.top_p = 0.95f}, log_of(half)), half);
  expect_near(probabilities({.top_p = 0.5f}, {2, 2, 2, 2}), {0.5, 0.5, 0, 0});
}

TEST(Sampler, TopPOfManyTokens) {  // more than are sorted at first
  const Logits equal(5000, 0.5f);
  const auto p = probabilities({.top_p = 0.5f}, equal);
  for (size_t i = 0; i < p.size(); ++i) ASSERT_EQ(p[i] > 0, i < 2500) << i;
}

TEST(Sampler, MinP) {
  expect_near(probabilities({.min_p = 0.25f}, log_of(half)), {5 / 9., 0, 2.5 / 9, 1.5 / 9});
  expect_near(probabilities({.min_p = 0.4f}, log_of(half)), {2 / 3., 0, 1 / 3., 0});
  expect_near(probabilities({.min_p = 1}, log_of(half)), {1, 0, 0, 0});
  expect_near(probabilities({.min_p = 1}, {1, 2, 2, 0}), {0, 0.5, 0.5, 0});
}

TEST(Sampler, LogitBias) {
  const SamplingSpec spec{.logit_bias = {{1, float(std::log(5))}, {0, -100}}};
  expect_near(probabilities(spec, log_of(half)), {0, 5 / 9., 2.5 / 9, 1.5 / 9});
}

TEST(Sampler, RepetitionPenaltySeesPromptAndCompletion) {
  SamplingSpec spec{.repetition_penalty = 2};
  Sampler s(spec, std::vector<int32_t>{0, 0}, 0);
  s.accept(1);
  const Logits logits{4, -3, 2, -1};
  const auto x = s.adjusted(logits);
  EXPECT_EQ(std::vector<double>(x.begin(), x.end()), (std::vector<double>{2, -6, 2, -1}));
}

TEST(Sampler, PresenceAndFrequencySeeTheCompletionAlone) {
  SamplingSpec spec{.presence_penalty = 0.5f, .frequency_penalty = 0.25f};
  Sampler s(spec, std::vector<int32_t>{0, 0}, 0);
  for (int32_t id : {1, 2, 2, 2}) s.accept(id);
  const Logits logits{4, 4, 4, 4};
  const auto x = s.adjusted(logits);
  EXPECT_EQ(std::vector<double>(x.begin(), x.end()), (std::vector<double>{4, 3.25, 2.75, 4}));
}

TEST(Sampler, PenaltiesFollowBiasAndPrecedeTemperature) {
  // 2 + 2 is halved by repetition to 2, less 1 for presence: 1. Were the bias last: 2 / 2 - 1 + 2.
  const SamplingSpec spec{
      .logit_bias = {{0, 2}}, .repetition_penalty = 2, .presence_penalty = 1, .temperature = 0.5f};
  const auto p = probabilities(spec, {2, 1}, {}, {0});
  expect_near(p, {0.5, 0.5});
  const auto q = probabilities(spec, {2, 1.5f}, {}, {0});
  EXPECT_NEAR(std::log(q[1] / q[0]), 1, 1e-6);  // the gap of 0.5 at temperature 0.5
}

TEST(Sampler, FiltersSeeWhatThoseBeforeLeft) {
  // top_k leaves 0.5 and 0.25; of these, two thirds is the first: top_p 0.6 keeps it alone, while
  // of the whole distribution it would take both.
  expect_near(probabilities({.top_k = 2, .top_p = 0.6f}, log_of(half)), {1, 0, 0, 0});
  expect_near(probabilities({.top_p = 0.6f}, log_of(half)), {2 / 3., 0, 1 / 3., 0});
  // At temperature 2 the least likely is 0.447 of the likeliest, before it 0.2: min_p comes after.
  EXPECT_GT(probabilities({.temperature = 2, .min_p = 0.4f}, log_of(half))[1], 0);
  EXPECT_EQ(probabilities({.temperature = 1, .min_p = 0.4f}, log_of(half))[1], 0);
  // min_p leaves 0.5, 0.25, 0.15: 0.85 of the rest is reached by two of them, 0.85 of all by three.
  expect_near(probabilities({.min_p = 0.25f, .top_p = 0.82f}, log_of(half)),
              {2 / 3., 0, 1 / 3., 0});
  expect_near(probabilities({.top_p = 0.82f}, log_of(half)), {5 / 9., 0, 2.5 / 9, 1.5 / 9});
}

TEST(Sampler, ExtremeLogits) {
  expect_near(probabilities({}, {-inf, -inf, -7, -inf}), {0, 0, 1, 0});
  expect_near(probabilities({.temperature = 0}, {-inf, -inf, -7, -inf}), {0, 0, 1, 0});
  expect_near(probabilities({.temperature = 1e-38f}, {3e38f, -3e38f, 0}), {1, 0, 0});
  expect_near(probabilities({.temperature = 100}, {3e-9f, -3e-9f, 0}), {1 / 3., 1 / 3., 1 / 3.});
  expect_near(probabilities({.top_k = 3}, {-inf, 1, -inf, 1}), {0, 0.5, 0, 0.5});
  expect_near(probabilities({}, {5, 1, 1}, {}, {}, {0}), {0, 0.5, 0.5});
  EXPECT_THROW(probabilities({}, {1, std::nanf(""), 2}), Error);
  EXPECT_THROW(probabilities({}, {1, inf, 2}), Error);
  EXPECT_THROW(probabilities({}, {-inf, -inf}), Error);
  EXPECT_THROW(probabilities({}, {1, 2}, {}, {}, {0, 1}), Error);
}

TEST(Sampler, ChecksItsSpec) {
  const auto names = [](const SamplingSpec& s, const std::string& field) {
    try {
      s.check(10);
      ADD_FAILURE() << field << " passed";
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()).find("[" + field + "]"), 0u) << e.what();
      EXPECT_TRUE(e.usage());
    }
  };
  EXPECT_NO_THROW(SamplingSpec{}.check(10));
  names({.logit_bias = {{10, 1}}}, "logit_bias");
  names({.logit_bias = {{-1, 1}}}, "logit_bias");
  names({.logit_bias = {{1, inf}}}, "logit_bias");
  names({.repetition_penalty = 0}, "repetition_penalty");
  names({.presence_penalty = std::nanf("")}, "presence_penalty");
  names({.frequency_penalty = -inf}, "frequency_penalty");
  names({.temperature = -1}, "temperature");
  names({.temperature = inf}, "temperature");
  names({.temperature = 100.5f}, "temperature");
  names({.min_p = 1.5f}, "min_p");
  names({.top_k = -1}, "top_k");
  names({.top_p = -0.1f}, "top_p");
  names({.min_tokens = 3, .max_tokens = 2}, "min_tokens");
  names({.max_tokens = -2}, "max_tokens");
  names({.stop_ids = {10}}, "stop_token_ids");
  names({.stop = {""}}, "stop");
  names({.logprobs = 11}, "logprobs");
}

TEST(Sampler, UniformNumbersAreUniform) {
  constexpr int bins = 64, n = 64000;
  std::vector<int> hits(bins);
  double serial = 0, before = 0.5;
  for (int i = 0; i < n; ++i) {
    const double u = sampling_uniform(3, uint32_t(i % 8), uint64_t(i / 8));
    ASSERT_TRUE(u >= 0 && u < 1);
    ++hits[size_t(u * bins)];
    serial += (u - 0.5) * (before - 0.5);
    before = u;
  }
  double chi = 0;
  for (int h : hits) chi += double(h - n / bins) * (h - n / bins) / (n / bins);
  EXPECT_GT(chi, 35);  // 63 degrees of freedom: 0.1% on either side
  EXPECT_LT(chi, 104);
  EXPECT_LT(std::abs(serial / n * 12), 4 / std::sqrt(double(n)));
}

TEST(Sampler, UniformNumbersDifferByEachOfTheirKeys) {
  const double u = sampling_uniform(1, 0, 0);
  EXPECT_EQ(u, sampling_uniform(1, 0, 0));
  EXPECT_NE(u, sampling_uniform(2, 0, 0));
  EXPECT_NE(u, sampling_uniform(1 | uint64_t(1) << 32, 0, 0));
  EXPECT_NE(u, sampling_uniform(1, 1, 0));
  EXPECT_NE(u, sampling_uniform(1, 0, 1));
  EXPECT_NE(sampling_uniform(1, 1, 0), sampling_uniform(1, 0, 1));
}

// Pearson's statistic of draws against the probabilities of choices(); -1 if an impossible token
// came.
double chi_square(const SamplingSpec& spec, const Logits& logits, int n) {
  Sampler s(spec, {}, 0);
  const auto p = probabilities(spec, logits);
  std::vector<int> hits(logits.size());
  for (int i = 0; i < n; ++i) ++hits[size_t(s.draw(logits, uint64_t(i)))];
  double chi = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0 && hits[i]) return -1;
    if (p[i] > 0) chi += (hits[i] - n * p[i]) * (hits[i] - n * p[i]) / (n * p[i]);
  }
  return chi;
}

TEST(Sampler, DrawsFollowTheDistribution) {
  Logits logits;
  for (int i = 0; i < 20; ++i) logits.push_back(float(std::sin(i * 1.7) * 1.5));
  struct Case {
    SamplingSpec spec;
    double limit;  // 0.1% of the distribution with that many degrees of freedom lies beyond
  };
  for (uint64_t seed : {1, 2, 3}) {
    for (const Case& c :
         {Case{{.seed = seed}, 43.8}, Case{{.temperature = 1.7f, .seed = seed}, 43.8},
          Case{{.top_k = 6, .seed = seed}, 20.5},
          Case{{.min_p = 0.3f, .top_p = 0.9f, .seed = seed}, 43.8}}) {
      const double chi = chi_square(c.spec, logits, 20000);
      EXPECT_GE(chi, 0);
      EXPECT_LT(chi, c.limit);
    }
  }
}

TEST(Sampler, LogprobsAreThoseOfTheModel) {
  const Logits logits{1, 3, 2, 3, -inf};
  const double lse = 3 + std::log(2 + std::exp(-1.0) + std::exp(-2.0));
  const TokenLogprob p = token_logprob(logits, 2, 3);
  EXPECT_EQ(p.token, 2);
  EXPECT_EQ(p.logprob, float(2 - lse));
  ASSERT_EQ(p.top.size(), 3u);
  EXPECT_EQ(p.top[0].first, 1);
  EXPECT_EQ(p.top[1].first, 3);
  EXPECT_EQ(p.top[2].first, 2);
  EXPECT_EQ(p.top[0].second, float(3 - lse));
  EXPECT_EQ(p.top[2].second, p.logprob);  // to the bit
  EXPECT_TRUE(token_logprob(logits, 2, 0).top.empty());
  EXPECT_EQ(token_logprob(logits, 2, 99).top.size(), 5u);
  EXPECT_EQ(token_logprob(logits, 4, 0).logprob, -inf);
}

TEST(Sampler, LogprobsOfALargeVocabularyAreAccurate) {
  const Logits equal(200000, -4.5f);  // a float sum of so many terms would be off by 1e-3
  EXPECT_NEAR(token_logprob(equal, 77, 1).logprob, -std::log(200000.0), 1e-6);
}

// A mask is the same as barring every other token, for every size and control.
TEST(Sampler, AllowedTokens) {
  std::mt19937 random(17);
  for (const size_t V : {size_t(1), size_t(31), size_t(32), size_t(33), size_t(100), size_t(1000)})
    for (int round = 0; round < 60; ++round) {
      std::vector<float> logits(V);
      for (float& x : logits) x = std::round(float(random() % 200) / 10 - 10);  // with ties
      std::vector<uint32_t> bits((V + 31) / 32);
      for (uint32_t& word : bits) word = round % 3 ? uint32_t(random()) : ~0u;
      if (round % 4 == 0) std::ranges::fill(bits, 0);
      const std::vector<int32_t> also{int32_t(random() % V)};
      std::vector<int32_t> barred;
      for (size_t i = 0; i < V; ++i)
        if (!(bits[i / 32] >> i % 32 & 1) && int32_t(i) != also[0]) barred.push_back(int32_t(i));
      SamplingSpec spec;
      spec.temperature = round % 2 ? 0 : 1.2f, spec.seed = uint64_t(round);
      if (round % 5 == 0) spec.top_k = 3;
      if (round % 7 == 0) spec.repetition_penalty = 1.5f, spec.top_p = 0.8f;
      Sampler one(spec, {}, 0), two(spec, {}, 0);
      for (uint64_t at = 0; at < 8; ++at) {
        const int32_t token = one.draw(logits, at, {}, {.bits = bits, .also = also});
        ASSERT_EQ(token, two.draw(logits, at, barred)) << V << " " << round;
        one.accept(token), two.accept(token);
      }
    }
}

}  // namespace
}  // namespace hearth
