// Multi-token prediction: what its modules see and predict, and its loss term.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/reference/reference.h"
#include "model/layer_spec.h"
#include "model_cases.h"
#include "train/logprob_programs.h"
#include "train/pretrain/programs.h"
#include "unit/message_of.h"

namespace hearth {
namespace {

using cases::make_batch, cases::ModelCase, cases::ModelRun, cases::Numbers;

ModelCase mtp_case(bool documents) {
  for (ModelCase m : cases::model_cases())
    if (m.name == "mtp") {
      m.config.mtp = 2, m.documents = documents;
      return m;
    }
  return {};
}

Numbers module_nll(ModelRun& run, Backend& b, int module) {
  return cases::read(b, run.memory().state.find(fmt::format("model.mtp_{}.nll", module)));
}

// Module k sees tokens up to k further and learns the one after them.
TEST(Mtp, ModulesSeeAndPredictFurtherTokens) {
  const auto reference = make_reference_backend(), fast = make_cpu_backend(2);
  constexpr int64_t B = 2, T = 9;
  for (const bool documents : {false, true})
    for (Backend* b : {reference.get(), fast.get()}) {
      const ModelCase m = mtp_case(documents);
      ModelRun run(*b, m, {.B = B, .T = T});
      const Batch batch = make_batch(m.config, B, T, documents);
      run.feed(batch);
      run.run();
      for (const int module : {1, 2}) {
        run.feed(batch);
        run.run();
        const Numbers before = module_nll(run, *b, module);
        const auto beside = [&](int64_t i, int64_t j) {  // both of the first row and one document
          return i < T && j < T &&
                 (!documents || batch.documents[size_t(i)] == batch.documents[size_t(j)]);
        };
        for (int64_t j = 0; j < T; ++j) {
          Batch other = batch;
          other.tokens[size_t(j)] = int32_t((other.tokens[size_t(j)] + 3) % m.config.vocab);
          run.feed(other);
          run.run();
          const Numbers after = module_nll(run, *b, module);
          for (int64_t i = 0; i < B * T; ++i)
            EXPECT_TRUE((j <= i + module && beside(i, j)) || before[size_t(i)] == after[size_t(i)])
                << "module " << module << " at " << i << " saw token " << j;
          const int64_t i = j - module;  // the furthest token that it sees
          const bool learns = i >= 0 && beside(i, j) && batch.targets[size_t(j)] >= 0;
          EXPECT_TRUE(!learns || before[size_t(i)] != after[size_t(i)]) << i;
        }
        for (int64_t i = 0; i < T; ++i) {  // its target is that of the token `module` further
          const int64_t at = i + module;
          const bool learns = at < T && beside(i, at) && batch.targets[size_t(at)] >= 0;
          EXPECT_EQ(before[size_t(i)] > 0, learns) << i;
        }
      }
    }
}

TEST(Mtp, IsATermOfItsOwnThatValidationLeavesOut) {
  const auto backend = make_cpu_backend(1);
  ModelCase m = mtp_case(false);
  const Batch batch = make_batch(m.config, 2, 8, false);
  ProgramSpec spec{.model = m.config, .B = 2, .T = 8};
  ParamStore params(*backend, decoder_params(m.config), DType::f32);
  params.initialise(3);
  Memory memory(*backend, &params);
  Programs programs(spec, memory);
  Scalars s;
  s.inv_targets = 1 / float(batch.count);
  programs.micro(batch, s, true);
  std::vector<std::string> names;
  LossQueue terms(*backend);
  programs.send_terms(terms);
  for (const LossValue& l : terms.take()) {
    names.push_back(l.name);
    EXPECT_GT(l.value, 0.5);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"mtp_1", "mtp_2"}));
  EXPECT_NEAR(programs.evaluate(batch), programs.loss(), 1e-5);
  EXPECT_TRUE(programs.evaluated_terms().empty());
  spec.losses.mtp_loss = 0;
  EXPECT_EQ(message_of([&] { Programs(spec, memory).micro(batch, s, true); }),
            "[--mtp-loss] expected a weight above 0 for a model with mtp 2, got 0");
}

// SFT asks about chosen rows, pretraining about all, some of which have no target. Where a target
// is masked, all later ones of its document are, because only pretraining learns from a row with a
// masked target further ahead.
TEST(Mtp, ChosenRowsTeachWhatTheyTeachAmongAll) {
  const auto backend = make_cpu_backend(2);
  constexpr int64_t B = 2, T = 11;
  for (const bool documents : {false, true}) {
    const ModelConfig c = mtp_case(documents).config;
    Batch all = make_batch(c, B, T, documents);
    for (size_t i = 1; i < all.targets.size(); ++i)
      if (all.positions[i] > 0 && all.targets[i - 1] < 0) all.targets[i] = -100;
    all.count = std::ranges::count_if(all.targets, [](int32_t t) { return t >= 0; });
    TokenBatch chosen{.B = B, .T = T, .tokens = all.tokens, .positions = all.positions};
    chosen.documents = all.documents;
    for (size_t i = 0; i < all.targets.size(); ++i)
      if (all.targets[i] >= 0) {
        chosen.rows.push_back(int32_t(i));
        chosen.targets.push_back(all.targets[i]);
      }
    Scalars s;
    s.inv_targets = 1 / float(all.count);
    const auto learn = [&](const BatchView& b) {
      ParamStore params(*backend, decoder_params(c), DType::f32);
      params.initialise(3);
      Memory memory(*backend, &params);
      LogprobPrograms programs({.model = c}, memory);
      programs.launch_train(b, s, true);
      LossQueue terms(*backend);
      programs.send_terms(terms);
      std::vector<float> found;
      for (const LossValue& l : terms.take()) found.push_back(float(l.value));
      EXPECT_EQ(found.size(), 2u);
      for (const ParamSpec& p : params.specs())
        std::ranges::copy(params.values(Part::grad, p.name), std::back_inserter(found));
      return found;
    };
    const std::vector<float> want = learn(BatchView(all, B, T, documents)), got = learn(chosen);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5) << i;
    EXPECT_GT(want[0], 0.5);
  }
}

// With a head of zeros every target costs ln V.
TEST(Mtp, IsLoggedAsAMeanOverItsOwnTargets) {
  const auto backend = make_cpu_backend(1);
  ModelConfig c = mtp_case(false).config;
  c.tied = false, c.zero_head = true;
  constexpr int64_t B = 2, T = 9;
  ParamStore params(*backend, decoder_params(c), DType::f32);
  params.initialise(3);
  Memory memory(*backend, &params);
  LogprobPrograms programs({.model = c}, memory);
  const Batch all = make_batch(c, B, T, false);
  TokenBatch chosen{.B = B, .T = T, .tokens = all.tokens};
  for (const int32_t row : {2, 3, 4, 8, 9, 12, 13})
    chosen.rows.push_back(row), chosen.targets.push_back(row);
  for (const BatchView& b : {BatchView(all, B, T, false), BatchView(chosen)}) {
    programs.launch_train(b, {.inv_targets = 1 / float(b.count)}, true);
    LossQueue terms(*backend);
    programs.send_terms(terms);
    const std::vector<LossValue> found = terms.take();
    ASSERT_EQ(found.size(), 2u);
    for (const LossValue& l : found) EXPECT_NEAR(l.value, std::log(double(c.vocab)), 1e-5);
  }
}

TEST(Mtp, HasExpertsWhereTheLastLayerHas) {
  ModelConfig c;
  c.vocab = 32, c.dim = 16, c.layers = 3, c.heads = 2, c.context = 8, c.mtp = 2;
  c.moe.experts = 4, c.moe.top_k = 2, c.moe.expert_hidden = 6, c.moe.shared_experts = 1;
  for (const auto& [pattern, mixers, experts] :
       {std::tuple{"DDE", "AAA", 4}, {"EED", "AAA", 0}, {"EDE", "AAN", 4}, {"DED", "AAN", 0}}) {
    c.moe.expert_pattern = pattern, c.mixer_pattern = mixers;
    const LayerSpec l = mtp_layer(c);
    EXPECT_TRUE(l.attends());
    EXPECT_EQ(l.experts, experts) << pattern;
    EXPECT_EQ(l.top_k, experts ? 2 : 0);
    EXPECT_EQ(l.hidden, experts ? 6 : c.resolve().hidden);
    EXPECT_EQ(l.shared_hidden, experts ? 6 : 0);
    int64_t active = 0;
    bool routed = false;
    for (const ParamSpec& p : decoder_params(c)) {
      active += cases::active_size(c, p);
      routed |= p.name == "mtp.1.block.mlp.router.weight";
    }
    EXPECT_EQ(routed, experts > 0);
    EXPECT_EQ(count_active_params(c), active);
  }
}

// The biases of the modules' routers follow their own loads.
TEST(Mtp, BalancesTheExpertsOfModules) {
  const auto backend = make_cpu_backend(1);
  for (const Recompute recompute : {Recompute::none, Recompute::block}) {
    ModelConfig c = mtp_case(false).config;
    c.moe.experts = 4, c.moe.router = Router::sigmoid, c.moe.router_bias = true;
    c = c.resolve();
    ParamStore params(*backend, decoder_params(c), DType::f32);
    params.initialise(3);
    Memory memory(*backend, &params);
    Programs programs(
        {.model = c, .B = 2, .T = 8, .recompute = recompute, .losses = {.balance_rate = 0.01f}},
        memory);
    const Batch batch = make_batch(c, 2, 8, false);
    Scalars s;
    s.lr = 1e-3f, s.clip = 1, s.inv_targets = 1 / float(batch.count);
    programs.micro(batch, s, true);
    std::vector<int32_t> loads(size_t((c.layers + c.mtp) * 4));
    memory.state.read<int32_t>("train.losses.router_load", loads);
    programs.update().run(s);
    for (int64_t k = 0; k < c.mtp; ++k) {
      const auto own = std::span(loads).subspan(size_t((c.layers + k) * 4), 4);
      EXPECT_EQ(own[0] + own[1] + own[2] + own[3], 2 * 8 * c.moe.top_k);
      const std::vector<float> bias =
          params.values(Part::weight, fmt::format("mtp.{}.block.mlp.router.bias", k));
      for (size_t e = 0; e < 4; ++e) {
        const int64_t lacking = 2 * 8 * c.moe.top_k - 4 * own[e];
        EXPECT_EQ(bias[e], 0.01f * float((lacking > 0) - (lacking < 0))) << k << " " << e;
      }
    }
  }
}

TEST(Mtp, RefusesTooManyModules) {
  ModelConfig c = preset("mtp-124m");
  c.mtp = 4;
  EXPECT_EQ(message_of([&] { c.resolve(); }), "[model] expected mtp between 0 and 3, got 4");
  c.mtp = -1;
  EXPECT_EQ(message_of([&] { c.resolve(); }), "[model] expected mtp between 0 and 3, got -1");
}

}  // namespace
}  // namespace hearth
