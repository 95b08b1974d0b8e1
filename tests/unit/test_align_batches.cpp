// Batches of alignment data: examples packed into rows, their losses and gradients, the order of
// steps.
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <random>

#include "data/examples/batches.h"
#include "sys/error.h"
#include "train/logprob_programs.h"
#include "unit/infer_model.h"
#include "unit/message_of.h"

namespace hearth {
namespace {

TEST(Packing, BestFitDecreasing) {
  const std::vector<int64_t> sizes{3, 5, 1, 4, 2, 3};
  const std::vector<std::vector<size_t>> want{{1, 2}, {3, 4}, {0, 5}};
  EXPECT_EQ(pack_best_fit(sizes, 6), want);
  EXPECT_THROW(pack_best_fit(sizes, 4), Error);
}

TEST(Packing, HoldsEachOnceAndWastesLittle) {
  std::mt19937 random(5);
  std::vector<int64_t> sizes(2000);
  int64_t total = 0;
  for (int64_t& s : sizes) total += s = 1 + int64_t(random() % 300);
  const auto rows = pack_best_fit(sizes, 512);
  std::vector<int> seen(sizes.size());
  for (const auto& row : rows) {
    int64_t used = 0;
    for (const size_t i : row) used += sizes[i], ++seen[i];
    EXPECT_LE(used, 512);
  }
  EXPECT_EQ(std::ranges::count(seen, 1), int64_t(sizes.size()));
  EXPECT_LT(double(rows.size()) * 512, 1.01 * double(total));
}

TEST(Packing, RowsHaveTheirPositionsDocumentsAndTargets) {
  const Example a{{1, 2, 3}, {false, false, true}}, b{{4, 5}, {true, true}};
  const std::vector<std::vector<const Example*>> rows{{&a, &b}, {&b}};
  const TokenBatch t = lay_out(rows, 4, true);
  EXPECT_EQ(t.tokens, (std::vector<int32_t>{1, 2, 4, 0, 4, 0, 0, 0}));
  EXPECT_EQ(t.positions, (std::vector<int32_t>{0, 1, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(t.documents, (std::vector<int32_t>{0, 0, 1, 2, 0, 1, 1, 1}));
  EXPECT_EQ(t.rows, (std::vector<int32_t>{1, 2, 4}));
  EXPECT_EQ(t.targets, (std::vector<int32_t>{3, 5, 5}));
}

// The same examples in rows of their own and packed: the same losses and the same gradients.
TEST(Packing, ChangesNothing) {
  const auto backend = make_cpu_backend(2);
  for (const ModelConfig& c : tiny_configs()) {
    TinyModel m(*backend, c);
    std::mt19937 random(3);
    std::vector<Example> examples(7);
    for (Example& e : examples)
      for (size_t i = 0, n = 3 + random() % 8; i < n; ++i)
        e.tokens.push_back(int32_t(random() % 23)), e.learned.push_back(i > n / 3);
    std::vector<int64_t> sizes;
    std::vector<std::vector<const Example*>> single, packed;
    for (const Example& e : examples) single.push_back({&e}), sizes.push_back(places_of(e));
    for (const auto& row : pack_best_fit(sizes, 24)) {
      packed.emplace_back();
      for (const size_t i : row) packed.back().push_back(&examples[i]);
    }
    EXPECT_LT(packed.size(), single.size());
    Memory memory(*backend, &m.params);
    LogprobPrograms programs({.model = c}, memory);
    const auto trained = [&](const TokenBatch& b) {
      const Scalars s{.inv_targets = 1 / float(b.rows.size())};
      double loss = 0;
      programs.launch_train(b, s, true);
      for (const float x : programs.take_nll()) loss += double(x) / double(b.rows.size());
      std::vector<float> grads;
      for (const ParamSpec& p : m.params.specs())
        for (const float x : m.params.values(Part::grad, p.name)) grads.push_back(x);
      return std::pair{loss, grads};
    };
    const auto [want, want_grads] = trained(lay_out(single, common_length(single, 24), false));
    const auto [got, got_grads] = trained(lay_out(packed, 24, true));
    EXPECT_NEAR(got, want, 1e-5);
    float top = 0;
    for (const float x : want_grads) top = std::max(top, std::abs(x));
    for (size_t i = 0; i < got_grads.size(); ++i)
      ASSERT_NEAR(got_grads[i], want_grads[i], 1e-5f * std::max(1.0f, top)) << i;
  }
}

// Empty rows, and buffers for more targets than there are, change no loss and no gradient by more
// than rounding; what is launched leaves the mean loss of the step on the device.
TEST(Packing, PaddingChangesNothing) {
  const auto backend = make_cpu_backend(2);
  const Example a{{1, 2, 3, 4, 5, 6}, {false, false, true, true, true, true}};
  const Example b{{7, 8, 9}, {false, true, true}}, c{{3, 1, 4, 1}, {false, false, false, true}};
  const std::vector<std::vector<const Example*>> rows{{&a, &b}, {&c}};
  for (const ModelConfig& config : tiny_configs()) {
    TinyModel m(*backend, config);
    Memory memory(*backend, &m.params);
    LogprobPrograms programs({.model = config}, memory);
    const Scalars s{.inv_targets = 1 / 7.0f};
    const auto trained = [&](int64_t B) {
      programs.launch_train(lay_out({rows.data(), 1}, 8, true, B), s, true);
      programs.launch_train(lay_out({rows.data() + 1, 1}, 8, true, B), s, false);
      std::vector<float> nll;
      for (int i = 0; i < 2; ++i)
        for (const float x : programs.take_nll()) nll.push_back(x);
      std::vector<float> grads;
      for (const ParamSpec& p : m.params.specs())
        for (const float x : m.params.values(Part::grad, p.name)) grads.push_back(x);
      std::array<float, size_t(most_loss_terms)> losses = {};
      memory.state.read<float>("logprob.losses", losses);
      EXPECT_NEAR(losses[0], std::accumulate(nll.begin(), nll.end(), 0.0) / 7, 1e-5);
      return std::pair{nll, grads};
    };
    const auto [want, want_grads] = trained(0);
    EXPECT_EQ(want.size(), 7u);
    programs.set_rows(200);
    const auto [got, got_grads] = trained(3);
    EXPECT_EQ(got, want);
    for (size_t i = 0; i < got_grads.size(); ++i)
      ASSERT_NEAR(got_grads[i], want_grads[i], 2e-6f * std::max(1.0f, std::abs(want_grads[i])));
  }
}

// The loss of a step of two micro-batches, sum / learned tokens, and its gradients, against the
// whole of it in double on the reference backend.
TEST(Packing, LossAndGradientsAreThoseInDouble) {
  const auto backend = make_cpu_backend(2), reference = make_reference_backend();
  const Example a{{1, 2, 3, 4, 5, 6}, {false, false, true, true, true, true}};
  const Example b{{7, 8, 9}, {false, true, true}}, c{{3, 1, 4, 1}, {false, false, false, true}};
  const std::vector<std::vector<const Example*>> rows{{&a, &b}, {&c}};
  for (const ModelConfig& config : tiny_configs()) {
    TinyModel m(*backend, config);
    Memory memory(*backend, &m.params);
    LogprobPrograms programs({.model = config}, memory);
    const Scalars s{.inv_targets = 1 / 7.0f};
    double loss = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      programs.launch_train(lay_out({&rows[i], 1}, 8, true), s, i == 0);
      for (const float x : programs.take_nll()) loss += double(x) / 7;
    }

    ParamStore exact(*reference, decoder_params(config), DType::f64);
    for (const ParamSpec& p : exact.specs())
      exact.set(p.name, m.params.values(Part::weight, p.name));
    Memory exact_memory(*reference, &exact);
    Tape t(DType::f64, "exact");
    const Var x = decoder(t, config, declare_inputs(t, 2, 8, true), {});
    const Var targets = t.input("targets", {2, 8}, DType::i32);
    head_loss(t, x, head_weight(t, config), targets,
              {.softcap = config.logit_softcap, .grad = true});
    differentiate(t);
    Exec exec(std::move(t), exact_memory);
    const TokenBatch batch = lay_out(rows, 8, true);
    std::vector<int32_t> all(16, -100);
    for (size_t i = 0; i < batch.rows.size(); ++i) all[size_t(batch.rows[i])] = batch.targets[i];
    exact_memory.state.write<int32_t>("exact.tokens", batch.tokens);
    exact_memory.state.write<int32_t>("exact.positions", batch.positions);
    exact_memory.state.write<int32_t>("exact.documents", batch.documents);
    exact_memory.state.write<int32_t>("exact.targets", all);
    exact_memory.state.write<Scalars>("scalars", std::span(&s, 1));
    exec.run();
    const double want = *exact_memory.state.find("exact.losses").as<double>();
    EXPECT_NEAR(loss, want, 1e-6 * want);
    for (const ParamSpec& p : exact.specs()) {
      const std::vector<float> g = m.params.values(Part::grad, p.name);
      const double* w = exact.get(Part::grad, p.name).as<double>();
      for (size_t i = 0; i < g.size(); ++i) ASSERT_NEAR(g[i], w[i], 3e-6) << p.name << " " << i;
    }
  }
}

TEST(StepOrder, GoesThroughAllOnceAnEpoch) {
  const StepOrder order{.items = 23, .per_step = 5, .seed = 9};
  ASSERT_EQ(order.steps_per_epoch(), 5);
  std::vector<std::vector<size_t>> epochs(2);
  for (int64_t step = 0; step < 10; ++step)
    for (const size_t i : order.of(step)) epochs[size_t(step / 5)].push_back(i);
  EXPECT_NE(epochs[0], epochs[1]);
  for (std::vector<size_t>& e : epochs) {
    std::ranges::sort(e);
    std::vector<size_t> all(23);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(e, all);
  }
}

TEST(StepOrder, SplitsOffAShare) {
  const Split s = split_off(1100, 0.1, 1), other = split_off(1100, 0.1, 2);
  EXPECT_EQ(s.held.size(), 110u);
  EXPECT_EQ(s.rest.size(), 990u);
  EXPECT_NE(s.held, other.held);
  EXPECT_TRUE(split_off(5, 0, 1).held.empty());
  EXPECT_THROW(split_off(1, 0.5, 1), Error);
  EXPECT_EQ(message_of([] { split_off(40, 0.99, 1); }),
            "[--holdout] a fraction of 0.99 of 40 examples leaves none to train on; the largest "
            "that leaves one is 0.975");
  EXPECT_EQ(split_off(40, 0.975, 1).rest.size(), 1u);
  EXPECT_EQ(split_off(3, 0.6666, 1).rest.size(), 1u);
}

}  // namespace
}  // namespace hearth
