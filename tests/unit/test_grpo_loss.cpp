// Advantages and policy losses against formulas written a second time, in long double and with
// numeric derivatives; and what must hold of them whatever the numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "formats/fields.h"
#include "sys/error.h"
#include "train/grpo/advantages.h"
#include "train/grpo/grpo_loss.h"

namespace hearth {
namespace {

using Real = long double;

struct LossCase {
  PolicyBatch batch;
  PolicyLossSpec spec;
};

std::vector<LossCase> loss_cases() {
  std::vector<LossCase> all;
  std::mt19937_64 bits(5);
  std::normal_distribution<double> normal;
  for (const Reduction reduction :
       {Reduction::grpo, Reduction::bnpo, Reduction::dr_grpo, Reduction::dapo})
    for (const RatioLevel ratio : {RatioLevel::token, RatioLevel::sequence})
      for (int kl = -1; kl < 3; ++kl)
        for (const bool weighted : {false, true}) {
          LossCase c;
          c.spec = {.epsilon = 0.2,
                    .epsilon_high = 0.28,
                    .reduction = reduction,
                    .ratio = ratio,
                    .beta = kl < 0 ? 0 : 0.04,
                    .kl = KlForm(std::max(kl, 0)),
                    .max_completion = 9};
          for (int i = 0; i < 5; ++i) {
            c.batch.lengths.push_back(1 + int64_t(bits() % 7));
            c.batch.advantages.push_back(normal(bits));
            for (int64_t t = 0; t < c.batch.lengths.back(); ++t) {
              c.batch.now.push_back(-std::abs(normal(bits)));
              c.batch.old.push_back(c.batch.now.back() + 0.3 * normal(bits));
              c.batch.reference.push_back(c.batch.now.back() + 0.5 * normal(bits));
              if (weighted) c.batch.weights.push_back(0.5 + double(bits() % 1000) / 1000);
            }
          }
          c.batch.generation_tokens = int64_t(c.batch.now.size()) + 11;
          all.push_back(std::move(c));
        }
  return all;
}

// The loss as its formulas read, without a thought for gradients.
Real plain_loss(const PolicyBatch& b, const PolicyLossSpec& s, const std::vector<Real>& now) {
  std::vector<std::vector<Real>> terms;
  size_t at = 0;
  for (size_t c = 0; c < b.lengths.size(); ++c) {
    const size_t n = size_t(b.lengths[c]);
    Real product = 0;
    for (size_t t = 0; t < n; ++t) product += now[at + t] - Real(b.old[at + t]);
    terms.emplace_back();
    for (size_t t = 0; t < n; ++t) {
      const Real rho = s.ratio == RatioLevel::token ? std::exp(now[at + t] - Real(b.old[at + t]))
                                                    : std::pow(std::exp(product), 1 / Real(n));
      const Real held = std::min(std::max(rho, 1 - Real(s.epsilon)), 1 + Real(s.epsilon_high));
      const Real A = b.advantages[c];
      Real x = -std::min(rho * A, held * A);
      if (!b.weights.empty()) x *= Real(b.weights[at + t]);
      const Real d = Real(b.reference[at + t]) - now[at + t];
      const Real forms[] = {-d, d * d / 2, std::exp(d) - d - 1};
      if (s.beta != 0) x += Real(s.beta) * forms[size_t(s.kl)];
      terms.back().push_back(x);
    }
    at += n;
  }
  Real sum = 0, means = 0;
  for (const auto& one : terms) {
    Real of_one = 0;
    for (const Real x : one) of_one += x;
    sum += of_one, means += of_one / Real(one.size());
  }
  switch (s.reduction) {
    case Reduction::grpo:
      return means / Real(terms.size());
    case Reduction::bnpo:
      return sum / Real(now.size());
    case Reduction::dr_grpo:
      return sum / (Real(terms.size()) * Real(s.max_completion));
    case Reduction::dapo:
      return sum / Real(b.generation_tokens);
  }
  return 0;
}

std::vector<std::optional<double>> random_rewards(uint64_t seed, size_t n, double missing) {
  std::mt19937_64 bits(seed);
  std::vector<std::optional<double>> r;
  for (size_t i = 0; i < n; ++i) {
    const bool there = double(bits() % 1000) / 1000 >= missing;
    const double value = double(bits() % 7) / 3 - 1;
    r.push_back(there ? std::optional(value) : std::nullopt);
  }
  return r;
}

TEST(GrpoLoss, EveryFormEqualsItsFormulaAndNumericGradient) {
  for (const LossCase& c : loss_cases()) {
    const PolicyLoss got = policy_loss(c.batch, c.spec);
    std::vector<Real> now(c.batch.now.begin(), c.batch.now.end());
    EXPECT_NEAR(got.loss, double(plain_loss(c.batch, c.spec, now)), 1e-12);
    for (size_t i = 0; i < now.size(); ++i) {
      const Real keep = now[i], h = 1e-6L;
      now[i] = keep + h;
      const Real up = plain_loss(c.batch, c.spec, now);
      now[i] = keep - h;
      const Real down = plain_loss(c.batch, c.spec, now);
      now[i] = keep;
      EXPECT_NEAR(got.dnow[i], double((up - down) / (2 * h)), 1e-6)
          << enum_name(c.spec.reduction) << " " << enum_name(c.spec.ratio) << " " << i;
    }
  }
}

TEST(GrpoLoss, CountsWhatClippingStops) {
  PolicyBatch b{.lengths = {4, 2},
                .advantages = {1, -1},
                .now = {0.5, -0.5, 0.1, 0, -0.5, 0.5},
                .old = {0, 0, 0, 0, 0, 0},
                .generation_tokens = 6};
  const PolicyLoss r = policy_loss(b, {});
  EXPECT_DOUBLE_EQ(r.clip_high, 1.0 / 6);  // above with a positive advantage
  EXPECT_DOUBLE_EQ(r.clip_low, 1.0 / 6);   // below with a negative one
  EXPECT_EQ(r.dnow[0], 0);
  EXPECT_NE(r.dnow[1], 0);
  EXPECT_EQ(r.dnow[4], 0);
  EXPECT_NE(r.dnow[5], 0);
}

TEST(GrpoLoss, OnThePolicyThatSampledTheGradientIsTheAdvantage) {
  PolicyBatch b{.lengths = {2, 3},
                .advantages = {0.7, -0.2},
                .now = {-1, -2, -3, -4, -5},
                .old = {-1, -2, -3, -4, -5},
                .generation_tokens = 5};
  const PolicyLoss r = policy_loss(b, {});
  for (size_t i = 0; i < 5; ++i) EXPECT_DOUBLE_EQ(r.dnow[i], -(i < 2 ? 0.7 : -0.2) / 5);
  EXPECT_EQ(kl_to_sampler(b), 0);
}

TEST(GrpoLoss, K3IsNeverNegative) {
  std::mt19937_64 bits(3);
  std::normal_distribution<double> normal;
  for (int i = 0; i < 100000; ++i) {
    const double now = 3 * normal(bits), scale = std::pow(10.0, -double(bits() % 12));
    EXPECT_GE(kl_term(KlForm::k3, now, now + scale * normal(bits)).value, 0);
  }
  EXPECT_EQ(kl_term(KlForm::k3, -1.5, -1.5).value, 0);
  EXPECT_EQ(kl_term(KlForm::k3, -1.5, -1.5).dnow, 0);
}

TEST(GrpoLoss, ImportanceIsTruncated) {
  const std::vector<double> trainer{-1, -1, -1}, sampler{-1, -3, -1.5};
  const std::vector<double> w = importance_weights(trainer, sampler, 2);
  EXPECT_EQ(w[0], 1);
  EXPECT_EQ(w[1], 2);
  EXPECT_DOUBLE_EQ(w[2], std::exp(0.5));
}

TEST(GrpoLoss, BetaFollowsTheKl) {
  EXPECT_GT(adapted_beta(0.1, 0.5, 0.1), 0.1);
  EXPECT_LT(adapted_beta(0.1, 0.01, 0.1), 0.1);
  EXPECT_EQ(adapted_beta(0.1, 0.1, 0.1), 0.1);
  EXPECT_EQ(adapted_beta(0.1, NAN, 0.1), 0.1);
  EXPECT_DOUBLE_EQ(adapted_beta(0.1, INFINITY, 0.1), 0.102);
  // A policy whose KL is what the coefficient lets it be settles at the target.
  double beta = 1;
  for (int i = 0; i < 2000; ++i) beta = adapted_beta(beta, 0.02 / beta, 0.1);
  EXPECT_NEAR(0.02 / beta, 0.1, 1e-3);
}

TEST(GrpoLoss, RefusesWhatDoesNotFit) {
  EXPECT_THROW(policy_loss({.lengths = {2}, .advantages = {1}, .now = {0}, .old = {0}}, {}), Error);
  EXPECT_THROW(policy_loss({.lengths = {1}, .advantages = {1}, .now = {0}, .old = {0}}, {}), Error);
  EXPECT_THROW(
      policy_loss(
          {.lengths = {1}, .advantages = {1}, .now = {0}, .old = {0}, .generation_tokens = 1},
          {.beta = 0.1}),
      Error);
}

TEST(Advantages, EveryScaleAndBaselineEqualsItsFormula) {
  constexpr size_t G = 6, groups = 8;
  for (const AdvantageScale scale :
       {AdvantageScale::group, AdvantageScale::batch, AdvantageScale::none})
    for (const Baseline baseline :
         {Baseline::mean, Baseline::median, Baseline::ema, Baseline::leave_one_out}) {
      const auto rewards = random_rewards(9, G * groups, 0.2);
      EmaBaseline ema{.mean = 0.25};
      const Advantages a =
          advantages(rewards, {.scale = scale, .baseline = baseline, .group = G}, ema);
      const auto deviation = [](const std::vector<Real>& x) {
        Real sum = 0, squares = 0;
        for (const Real r : x) sum += r, squares += r * r;
        const Real n = Real(x.size());
        return std::sqrt((squares - sum * sum / n) / (n - 1));
      };
      std::vector<Real> all;
      for (const auto& r : rewards)
        if (r) all.push_back(*r);
      for (size_t g = 0; g < groups; ++g) {
        std::vector<Real> in;
        for (size_t i = 0; i < G; ++i)
          if (rewards[g * G + i]) in.push_back(*rewards[g * G + i]);
        for (size_t i = 0; i < G; ++i) {
          const auto& r = rewards[g * G + i];
          Real wanted = 0;
          if (r && in.size() > 1 && *std::ranges::min_element(in) < *std::ranges::max_element(in)) {
            Real sum = 0;
            for (const Real x : in) sum += x;
            std::vector<Real> sorted = in;
            std::ranges::sort(sorted);
            const size_t n = in.size();
            const Real bases[] = {sum / Real(n), (sorted[(n - 1) / 2] + sorted[n / 2]) / 2, 0.25L,
                                  (sum - *r) / Real(n - 1)};
            const Real scales[] = {deviation(in) + 1e-4L, deviation(all) + 1e-4L, 1};
            wanted = (*r - bases[size_t(baseline)]) / scales[size_t(scale)];
          }
          EXPECT_NEAR(a.values[g * G + i], double(wanted), 1e-9);
          EXPECT_EQ(a.rewarded[g * G + i], r.has_value());
        }
      }
      EXPECT_NEAR(*ema.mean, 0.9 * 0.25 + 0.1 * a.reward_mean, 1e-12);
    }
}

TEST(Advantages, OfAGroupSumToZero) {
  for (uint64_t seed = 1; seed < 50; ++seed)
    for (const Baseline baseline : {Baseline::mean, Baseline::leave_one_out})
      for (const AdvantageScale scale :
           {AdvantageScale::group, AdvantageScale::batch, AdvantageScale::none}) {
        EmaBaseline ema;
        const auto rewards = random_rewards(seed, 64, 0.1);
        const Advantages a =
            advantages(rewards, {.scale = scale, .baseline = baseline, .group = 8}, ema);
        for (size_t g = 0; g < 8; ++g) {
          double sum = 0;
          for (size_t i = 0; i < 8; ++i) sum += a.values[8 * g + i];
          EXPECT_NEAR(sum, 0, 1e-9);
        }
      }
}

TEST(Advantages, EqualRewardsGiveExactlyNoGradient) {
  for (const Baseline baseline :
       {Baseline::mean, Baseline::median, Baseline::ema, Baseline::leave_one_out}) {
    EmaBaseline ema{.mean = 5};
    // 0.1 has no exact double: a mean of three of them need not be one of them.
    const std::vector<std::optional<double>> rewards{0.1, 0.1, 0.1, 1, 0, 0.5, 0.3, {}, {}};
    const Advantages a = advantages(rewards, {.baseline = baseline, .group = 3}, ema);
    EXPECT_EQ(a.groups, 2);
    EXPECT_EQ(a.equal_groups, 1);
    for (const size_t i : {0, 1, 2, 6, 7, 8}) EXPECT_EQ(a.values[i], 0);
    PolicyBatch b{.lengths = {2, 1, 3},
                  .advantages = {a.values[0], a.values[1], a.values[2]},
                  .now = {-1, -2, -3, -1, -2, -1},
                  .old = {-1.1, -2.4, -2.9, -1, -2, -1},
                  .generation_tokens = 6};
    for (const double d : policy_loss(b, {}).dnow) EXPECT_EQ(d, 0);
  }
}

TEST(Advantages, AMovingMeanBeginsWithTheFirstStep) {
  EmaBaseline ema;
  const std::vector<std::optional<double>> first{0.0, 1.0}, none{{}, {}};
  advantages(first, {.baseline = Baseline::ema, .group = 2}, ema);
  EXPECT_EQ(ema.mean, 0.5);
  advantages(none, {.baseline = Baseline::ema, .group = 2}, ema);
  EXPECT_EQ(ema.mean, 0.5);
}

// What tests/parity/grpo_losses.py compares with PyTorch's expressions; HEARTH_GRPO_CASES names the
// file to write. Every number is finite: JSON writes another one as null.
TEST(GrpoLoss, WritesItsCasesForPyTorch) {
  nlohmann::ordered_json all;
  for (const LossCase& c : loss_cases()) {
    const PolicyLoss r = policy_loss(c.batch, c.spec);
    all["losses"].push_back({{"epsilon", c.spec.epsilon},
                             {"epsilon_high", c.spec.epsilon_high},
                             {"reduction", enum_name(c.spec.reduction)},
                             {"ratio", enum_name(c.spec.ratio)},
                             {"beta", c.spec.beta},
                             {"kl_form", enum_name(c.spec.kl)},
                             {"max_completion", c.spec.max_completion},
                             {"generation_tokens", c.batch.generation_tokens},
                             {"lengths", c.batch.lengths},
                             {"advantages", c.batch.advantages},
                             {"now", c.batch.now},
                             {"old", c.batch.old},
                             {"reference", c.batch.reference},
                             {"weights", c.batch.weights},
                             {"loss", r.loss},
                             {"kl", r.kl},
                             {"dnow", r.dnow}});
  }
  for (const AdvantageScale scale :
       {AdvantageScale::group, AdvantageScale::batch, AdvantageScale::none})
    for (const Baseline baseline :
         {Baseline::mean, Baseline::median, Baseline::ema, Baseline::leave_one_out}) {
      EmaBaseline ema{.mean = 0.25};
      const auto rewards = random_rewards(21, 48, 0);
      std::vector<double> plain;
      for (const auto& r : rewards) plain.push_back(*r);
      const Advantages a =
          advantages(rewards, {.scale = scale, .baseline = baseline, .group = 6}, ema);
      all["advantages"].push_back({{"scale", enum_name(scale)},
                                   {"baseline", enum_name(baseline)},
                                   {"group", 6},
                                   {"ema", 0.25},
                                   {"rewards", plain},
                                   {"values", a.values}});
    }
  EXPECT_EQ(all.dump().find("null"), std::string::npos);
  if (const char* path = std::getenv("HEARTH_GRPO_CASES"))
    std::ofstream(path) << all.dump() << "\n";
}

}  // namespace
}  // namespace hearth
