// Losses of further tokens without parameters: what they read and predict, their gradient, and
// where they have no place.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/reference/reference.h"
#include "model/further_losses.h"
#include "model_cases.h"
#include "train/pretrain/programs.h"
#include "unit/message_of.h"

namespace hearth {
namespace {

using cases::make_batch, cases::Numbers;

constexpr int64_t B = 2, T = 9;
constexpr float weight = 0.5f;

ModelConfig small_model() {
  ModelConfig c;
  c.vocab = 19, c.dim = 8, c.layers = 2, c.heads = 2, c.hidden = 12, c.context = 16;
  c.logit_softcap = 5, c.tied = false;
  return c.resolve();
}

// The loss of a model and of further tokens, with all gradients.
struct FurtherRun {
  FurtherRun(Backend& b, DType dtype, bool documents)
      : backend(b), params(b, decoder_params(model), dtype), memory(b, &params) {
    params.initialise(5);
    Tape t(dtype, "model");
    const DecoderInputs in = declare_inputs(t, B, T, documents);
    const Var targets = t.input("targets", {B, T}, DType::i32);
    const Var x = decoder(t, model, in, {});
    const HeadSpec head{.softcap = model.logit_softcap, .chunk_rows = 5, .grad = true};
    head_loss(t, x, head_weight(t, model), targets, head);
    record_further_losses(t, model, x, in.positions, targets, weight, head);
    terms = t.losses;
    differentiate(t);
    exec = std::make_unique<Exec>(std::move(t), memory);
  }
  void run(const Batch& batch) {
    memory.state.write<int32_t>("model.tokens", batch.tokens);
    memory.state.write<int32_t>("model.targets", batch.targets);
    memory.state.write<int32_t>("model.positions", batch.positions);
    if (memory.state.has("model.documents"))
      memory.state.write<int32_t>("model.documents", batch.documents);
    Scalars s;
    s.inv_targets = 1 / float(batch.count);
    memory.state.write<Scalars>("scalars", std::span<const Scalars>(&s, 1));
    exec->run();
    backend.synchronize();
  }
  Numbers nll(int k) {
    return cases::read(backend, memory.state.find("model.further_" + std::to_string(k) + ".nll"));
  }
  double loss() {
    const Numbers values = cases::read(backend, memory.state.find("model.losses"));
    double sum = 0;
    for (size_t i = 0; i < terms.size(); ++i) sum += double(terms[i].weight) * values[i];
    return sum;
  }

  const ModelConfig model = small_model();
  Backend& backend;
  ParamStore params;
  Memory memory;
  std::vector<LossTerm> terms;
  std::unique_ptr<Exec> exec;
};

// The head at a token sees no later one; its further targets are those of the tokens after it.
TEST(FurtherLosses, SeeNoLaterTokens) {
  const auto reference = make_reference_backend(), fast = make_cpu_backend(2);
  for (const bool documents : {false, true})
    for (Backend* b : {reference.get(), fast.get()}) {
      FurtherRun run(*b, DType::f32, documents);
      const Batch batch = make_batch(run.model, B, T, documents);
      const auto beside = [&](int64_t i, int64_t j) {  // of the first row, and one document
        return i < T && j < T &&
               (!documents || batch.documents[size_t(i)] == batch.documents[size_t(j)]);
      };
      for (const int k : {1, 2}) {
        run.run(batch);
        const Numbers before = run.nll(k);
        for (int64_t i = 0; i < T; ++i) {
          const bool learns = beside(i, i + k) && batch.targets[size_t(i + k)] >= 0;
          EXPECT_EQ(before[size_t(i)] > 0, learns) << k << " " << i;
        }
        for (int64_t j = 0; j < T; ++j) {
          Batch other = batch;
          other.tokens[size_t(j)] = int32_t((other.tokens[size_t(j)] + 3) % run.model.vocab);
          run.run(other);
          const Numbers after = run.nll(k);
          for (int64_t i = 0; i < B * T; ++i)
            EXPECT_TRUE((j <= i && beside(i, j)) || before[size_t(i)] == after[size_t(i)])
                << "loss " << k << " at " << i << " saw token " << j;
          EXPECT_TRUE(before[size_t(j)] == 0 || before[size_t(j)] != after[size_t(j)]) << j;
          // Another target of token j is another loss of the token k before it alone.
          other = batch;
          if (other.targets[size_t(j)] < 0) continue;
          other.targets[size_t(j)] = int32_t((other.targets[size_t(j)] + 3) % run.model.vocab);
          run.run(other);
          const Numbers moved = run.nll(k);
          for (int64_t i = 0; i < B * T; ++i)
            EXPECT_EQ(before[size_t(i)] != moved[size_t(i)], i == j - k && beside(i, j)) << i;
        }
      }
    }
}

TEST(FurtherLosses, HaveTheirWeightsAndGradients) {
  const auto backend = make_reference_backend();
  FurtherRun run(*backend, DType::f64, true);
  const Batch batch = make_batch(run.model, B, T, true);
  ASSERT_EQ(run.terms.size(), 3u);
  EXPECT_EQ(run.terms[1].weight, weight);
  EXPECT_EQ(run.terms[2].weight, weight * weight);
  EXPECT_FALSE(run.terms[1].validate || run.terms[2].validate);
  run.run(batch);
  constexpr double step = 1e-3;  // exact enough in the fp32 of set()
  for (const ParamSpec& p : run.params.specs()) {
    run.run(batch);
    const Numbers grad = cases::read(*backend, run.params.get(Part::grad, p.name));
    const std::vector<float> values = run.params.values(Part::weight, p.name);
    double large = 0;
    for (const double g : grad) large = std::max(large, std::abs(g));
    for (size_t i = 0; i < values.size(); i += 1 + values.size() / 5) {
      const auto loss_at = [&](float x) {
        std::vector<float> moved = values;
        moved[i] = x;
        run.params.set(p.name, moved);
        run.run(batch);
        return run.loss();
      };
      const float up = values[i] + float(step), down = values[i] - float(step);
      const double slope = (loss_at(up) - loss_at(down)) / (double(up) - double(down));
      run.params.set(p.name, values);
      EXPECT_NEAR(slope, grad[i], 1e-4 * std::max(1.0, large)) << p.name << " " << i;
    }
  }
}

TEST(FurtherLosses, ArePartOfTrainingAlone) {
  const auto backend = make_cpu_backend(1);
  const ModelConfig model = small_model();
  const Batch batch = make_batch(model, B, T, false);
  ParamStore params(*backend, decoder_params(model), DType::f32);
  params.initialise(3);
  Memory memory(*backend, &params);
  ProgramSpec spec{.model = model, .B = B, .T = T, .losses = {.further_loss = weight}};
  Programs programs(spec, memory);
  Scalars s;
  s.inv_targets = 1 / float(batch.count);
  programs.micro(batch, s, true);
  LossQueue terms(*backend);
  programs.send_terms(terms);
  std::vector<std::string> names;
  for (const LossValue& l : terms.take()) {
    names.push_back(l.name);
    EXPECT_GT(l.value, 0.5);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"further_1", "further_2"}));
  EXPECT_NEAR(programs.evaluate(batch), programs.loss(), 1e-5);
  EXPECT_TRUE(programs.evaluated_terms().empty());
}

// With a head of zeros every target costs ln V, whatever the batches are.
TEST(FurtherLosses, AreLoggedAsMeansOverTheirOwnTargets) {
  const auto backend = make_cpu_backend(1);
  ModelConfig model = small_model();
  model.zero_head = true;
  const double want = std::log(double(model.vocab));
  for (const bool documents : {false, true}) {
    ParamStore params(*backend, decoder_params(model), DType::f32);
    params.initialise(3);
    Memory memory(*backend, &params);
    Programs programs({.model = model,
                       .B = B,
                       .T = T,
                       .documents = documents,
                       .accumulates = true,
                       .losses = {.further_loss = weight}},
                      memory);
    const Batch a = make_batch(model, B, T, documents), b = make_batch(model, B, T, documents, 3);
    const Scalars s{.inv_targets = 1 / float(a.count + b.count)};
    LossQueue terms(*backend);
    programs.micro(a, s, true), programs.micro(b, s, false), programs.send_terms(terms);
    programs.micro(b, {.inv_targets = 1 / float(b.count)}, true), programs.send_terms(terms);
    for (int step = 0; step < 2; ++step) {
      const std::vector<LossValue> found = terms.take();
      ASSERT_EQ(found.size(), 2u);
      for (const LossValue& l : found) EXPECT_NEAR(l.value, want, 1e-5) << l.name << ' ' << step;
    }
    // The objective divides by the number of next tokens, of which there are more.
    std::vector<float> values(static_cast<size_t>(most_loss_terms));
    memory.state.read<float>("train.losses", values);
    EXPECT_NEAR(values[0], want, 1e-5);
    EXPECT_LT(values[1], 0.95 * want);
    EXPECT_LT(values[2], values[1]);
  }
  // Rows of one token have no token further ahead.
  ParamStore params(*backend, decoder_params(model), DType::f32);
  params.initialise(3);
  Memory memory(*backend, &params);
  Programs programs({.model = model, .B = 4, .T = 1, .losses = {.further_loss = weight}}, memory);
  const Batch batch = make_batch(model, 4, 1, false);
  programs.micro(batch, {.inv_targets = 1 / float(batch.count)}, true);
  LossQueue terms(*backend);
  programs.send_terms(terms);
  EXPECT_TRUE(terms.take().empty());
}

TEST(FurtherLosses, RefuseModulesAndChosenRows) {
  Tape t;
  ModelConfig model = small_model();
  const auto refusal = [&](Var positions) {
    return message_of(
        [&] { record_further_losses(t, model, {}, positions, {}, weight, {.grad = true}); });
  };
  EXPECT_EQ(refusal({}),
            "[--further-loss] is for pretraining, which learns every token: leave it out");
  model.mtp = 1;
  EXPECT_EQ(refusal({}),
            "[--further-loss] the modules of multi-token prediction (--mtp) predict further tokens "
            "already: leave one of both out");
}

}  // namespace
}  // namespace hearth
