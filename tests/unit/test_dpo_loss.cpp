// The losses of DPO against the formulas of the specification written out plainly, their slopes
// against differences, and the whole way from weights to loss in double.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "cpu/backend.h"
#include "cpu/reference/reference.h"
#include "formats/fields.h"
#include "train/dpo/dpo_loss.h"
#include "unit/infer_model.h"

namespace hearth {
namespace {

constexpr DpoLoss all_losses[] = {DpoLoss::sigmoid, DpoLoss::hinge,  DpoLoss::ipo,
                                  DpoLoss::cdpo,    DpoLoss::robust, DpoLoss::sigmoid_norm};

using Logs = std::vector<double>;

struct TokenPair {
  Logs chosen, rejected;  // log-probabilities of the tokens of each completion
  double reference_chosen, reference_rejected;
};

double total(const Logs& x) {
  double sum = 0;
  for (const double v : x) sum += v;
  return sum;
}

// As the specification has it, term by term.
double plain_loss(const TokenPair& p, const DpoSpec& s) {
  const auto log_s = [](double x) { return -std::log(1 + std::exp(-x)); };
  const double b = s.beta, e = s.label_smoothing;
  const double c = total(p.chosen) - p.reference_chosen;
  const double r = total(p.rejected) - p.reference_rejected;
  const double delta = c - r;
  const double mean = c / double(p.chosen.size()) - r / double(p.rejected.size());
  switch (s.loss) {
    case DpoLoss::sigmoid:
      return -log_s(b * delta);
    case DpoLoss::hinge:
      return std::max(0.0, 1 - b * delta);
    case DpoLoss::ipo:
      return std::pow(mean - 1 / (2 * b), 2);
    case DpoLoss::cdpo:
      return -(1 - e) * log_s(b * delta) - e * log_s(-b * delta);
    case DpoLoss::robust:
      return (-(1 - e) * log_s(b * delta) + e * log_s(-b * delta)) / (1 - 2 * e);
    case DpoLoss::sigmoid_norm:
      return -log_s(b * mean);
  }
  return NAN;
}

DpoPair pair_of(const TokenPair& p, const DpoSpec& s) {
  return dpo_pair({total(p.chosen), p.reference_chosen, int64_t(p.chosen.size())},
                  {total(p.rejected), p.reference_rejected, int64_t(p.rejected.size())}, s);
}

std::vector<TokenPair> random_pairs(int count) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> log(-6, 0);
  const auto logs = [&] {
    Logs x(1 + random() % 9);
    for (double& v : x) v = log(random);
    return x;
  };
  std::vector<TokenPair> pairs;
  for (int i = 0; i < count; ++i) {
    TokenPair p{logs(), logs(), 0, 0};
    p.reference_chosen = total(p.chosen) + 3 * log(random) + 9;
    p.reference_rejected = total(p.rejected) + 3 * log(random) + 9;
    pairs.push_back(std::move(p));
  }
  return pairs;
}

std::vector<DpoSpec> specs() {
  std::vector<DpoSpec> all;
  for (const DpoLoss loss : all_losses)
    for (const double beta : {0.1, 0.5}) {
      const bool smooth = loss == DpoLoss::cdpo || loss == DpoLoss::robust;
      for (const double e : {0.0, 0.2})
        if (e == 0 || smooth) all.push_back({loss, beta, e});
    }
  return all;
}

TEST(DpoLosses, ValuesAndSlopesAreThoseOfTheFormulas) {
  for (const DpoSpec& s : specs())
    for (const TokenPair& p : random_pairs(50)) {
      SCOPED_TRACE(enum_name(s.loss));
      const DpoPair got = pair_of(p, s);
      EXPECT_NEAR(got.loss, plain_loss(p, s), 1e-10 * (1 + std::abs(got.loss)));
      const double h = 1e-6;
      const auto slope = [&](Logs TokenPair::*side, size_t i) {
        TokenPair up = p, down = p;
        (up.*side)[i] += h, (down.*side)[i] -= h;
        return (plain_loss(up, s) - plain_loss(down, s)) / (2 * h);
      };
      for (size_t i = 0; i < p.chosen.size(); ++i)
        EXPECT_NEAR(got.d_chosen, slope(&TokenPair::chosen, i),
                    1e-6 * (1 + std::abs(got.d_chosen)));
      for (size_t i = 0; i < p.rejected.size(); ++i)
        EXPECT_NEAR(got.d_rejected, slope(&TokenPair::rejected, i),
                    1e-6 * (1 + std::abs(got.d_rejected)));
      EXPECT_NEAR(got.reward_chosen, s.beta * (total(p.chosen) - p.reference_chosen), 1e-12);
      EXPECT_NEAR(got.reward_rejected, s.beta * (total(p.rejected) - p.reference_rejected), 1e-12);
    }
}

TEST(DpoLosses, ExtremesStayFinite) {
  for (const DpoSpec& s : specs())
    for (const double gap : {-1e5, 0.0, 1e5}) {
      const DpoPair p = dpo_pair({gap, 0, 10}, {-gap, 0, 10}, s);
      EXPECT_TRUE(std::isfinite(p.loss) && std::isfinite(p.d_chosen)) << enum_name(s.loss) << gap;
    }
  // Without a difference the sigmoid's loss is log 2.
  EXPECT_NEAR(dpo_pair({-3, -3, 2}, {-5, -5, 4}, {}).loss, std::log(2.0), 1e-15);
}

// A tiny model in double: the loss of a pair as a function of its weights.
class DoubleModel {
 public:
  DoubleModel()
      : params_(*backend_, decoder_params(tiny_config()), DType::f64),
        memory_(*backend_, &params_) {
    params_.initialise(3);
    Tape t(DType::f64, "pair");
    const Var x = decoder(t, tiny_config(), declare_inputs(t, 2, 6, false), {});
    const Var rows = gather_rows(t, x, t.input("rows", {1, 8}, DType::i32));
    const Var y = head_logprob(t, rows, head_weight(t, tiny_config()),
                               t.input("targets", {1, 8}, DType::i32), {.chunk_rows = 3});
    t.host_grad(y, "dlogprob");
    differentiate(t);
    exec_ = std::make_unique<Exec>(std::move(t), memory_);
    write("tokens", {1, 2, 3, 4, 5, 6, 1, 2, 3, 7, 8, 0});
    write("positions", {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5});
    write("rows", {2, 3, 4, 8, 9, -1, -1, -1});  // three tokens chosen, two rejected
    write("targets", {4, 5, 6, 7, 8, -1, -1, -1});
  }

  DpoPair forward(const DpoSpec& s) {
    exec_->run_part(0);
    Logs y(8);
    memory_.state.read<double>("pair.logprob", y);
    return pair_of({{y[0], y[1], y[2]}, {y[3], y[4]}, -9.5, -7.25}, s);
  }
  void backward(const DpoPair& p) {
    const Logs d{p.d_chosen, p.d_chosen, p.d_chosen, p.d_rejected, p.d_rejected, 0, 0, 0};
    memory_.state.write<double>("pair.dlogprob", d);
    exec_->run_part(1);
  }
  double* weights(const std::string& name) { return params_.get(Part::weight, name).as<double>(); }
  const double* grads(const std::string& name) {
    return params_.get(Part::grad, name).as<double>();
  }
  std::span<const ParamSpec> specs() const { return params_.specs(); }

 private:
  void write(const char* what, const std::vector<int32_t>& v) {
    memory_.state.write<int32_t>(std::string("pair.") + what, v);
  }
  std::unique_ptr<Backend> backend_ = make_reference_backend();
  ParamStore params_;
  Memory memory_;
  std::unique_ptr<Exec> exec_;
};

TEST(DpoLosses, GradientsOfWeightsAreSlopes) {
  DoubleModel m;
  for (const DpoSpec& s : specs()) {
    if (s.beta > 0.1) continue;
    m.backward(m.forward(s));
    for (const ParamSpec& p : m.specs()) {
      const int64_t n = p.shape.numel();
      for (int64_t k = 0; k < 3; ++k) {
        const int64_t i = (k * 7919 + 37) % n;
        double& w = m.weights(p.name)[i];
        const double at = w, h = 1e-5, want = m.grads(p.name)[i];
        w = at + h;
        const double up = m.forward(s).loss;
        w = at - h;
        const double down = m.forward(s).loss;
        w = at;
        EXPECT_NEAR((up - down) / (2 * h), want, 1e-6) << enum_name(s.loss) << " " << p.name;
      }
    }
  }
}

// For tests/parity/alignment_losses.py: cases with their results as JSON; HEARTH_LOSS_DUMP names
// the file to write. Every number is finite: JSON writes another one as null.
TEST(DpoLosses, DumpForParity) {
  nlohmann::json all{{"dpo", nlohmann::json::array()}, {"logprob", nlohmann::json::array()}};
  for (const DpoSpec& s : specs())
    for (const TokenPair& p : random_pairs(8)) {
      const DpoPair got = pair_of(p, s);
      all["dpo"].push_back({{"loss_type", enum_name(s.loss)},
                            {"beta", s.beta},
                            {"label_smoothing", s.label_smoothing},
                            {"chosen", p.chosen},
                            {"rejected", p.rejected},
                            {"reference_chosen", p.reference_chosen},
                            {"reference_rejected", p.reference_rejected},
                            {"loss", got.loss},
                            {"d_chosen", got.d_chosen},
                            {"d_rejected", got.d_rejected},
                            {"reward_chosen", got.reward_chosen},
                            {"reward_rejected", got.reward_rejected}});
    }
  const auto cpu = make_cpu_backend(1);
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0, 3);
  for (const float cap : {0.0f, 5.0f})
    for (const float temperature : {1.0f, 0.7f}) {
      constexpr int64_t N = 3, V = 17;
      std::vector<float> logits(N * V), d(N), logprob(N), entropy(N), dlogits(N * V);
      std::vector<int32_t> targets{4, -1, 16};
      for (float& x : logits) x = normal(random);
      for (float& x : d) x = normal(random);
      const auto tensor = [](auto& v, int64_t cols, DType dtype) {
        return Tensor{reinterpret_cast<std::byte*>(v.data()), {N, cols}, dtype};
      };
      const LogprobSpec spec{.vocab = V, .softcap = cap, .temperature = temperature};
      const Tensor x = tensor(logits, V, DType::f32), t = tensor(targets, 1, DType::i32);
      cpu->kernels().logprob(cpu->stream(), {.logprob = tensor(logprob, 1, DType::f32),
                                             .entropy = tensor(entropy, 1, DType::f32),
                                             .logits = x,
                                             .targets = t,
                                             .spec = spec});
      cpu->kernels().logprob_bwd(cpu->stream(), {.dlogits = tensor(dlogits, V, DType::f32),
                                                 .dlogprob = tensor(d, 1, DType::f32),
                                                 .logits = x,
                                                 .targets = t,
                                                 .spec = spec});
      all["logprob"].push_back({{"softcap", cap},
                                {"temperature", temperature},
                                {"vocab", V},
                                {"logits", logits},
                                {"targets", targets},
                                {"d", d},
                                {"logprob", logprob},
                                {"entropy", entropy},
                                {"dlogits", dlogits}});
    }
  EXPECT_EQ(all.dump().find("null"), std::string::npos);
  if (const char* file = std::getenv("HEARTH_LOSS_DUMP")) std::ofstream(file) << all.dump();
}

}  // namespace
}  // namespace hearth
