// Mixtures of experts: the router's choice, the sorted rows, loads and selection biases over steps,
// and configs that are refused.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/reference/reference.h"
#include "data/examples/batches.h"
#include "model/layer_spec.h"
#include "model_cases.h"
#include "rewards/regex.h"
#include "train/logprob_programs.h"
#include "train/pretrain/programs.h"
#include "unit/cpu_case.h"
#include "unit/grpo_task.h"
#include "unit/infer_model.h"
#include "unit/message_of.h"

namespace hearth {
namespace {

using namespace cpu_test;
using cases::make_batch;

struct Chosen {
  std::vector<int32_t> ids;
  std::vector<double> weights;
};

std::vector<int32_t> ints_of(const Array& a) {
  const Tensor t = a;
  return {t.as<int32_t>(), t.as<int32_t>() + t.numel()};
}

// The choice for one token.
Chosen choose(const Runner& r, const std::vector<double>& logits, int64_t k, const RouteSpec& spec,
              const std::vector<double>& bias = {}) {
  const int64_t E = int64_t(logits.size());
  Array ids({1, k}, DType::i32), weights = r.sums({1, k});
  const Array own = Array({1, E}, logits).as(r.acc);
  const Array moved = bias.empty() ? Array() : Array({E}, bias).as(r.dtype);
  r.k.route(r.s, {.ids = ids, .weights = weights, .logits = own, .bias = moved, .spec = spec});
  Array wide({1, k});
  reference_kernels().copy(Array::stream(), {.y = wide, .x = weights});
  return {ints_of(ids), {wide.begin(), wide.end()}};
}

std::vector<Runner> all_runners() {
  std::vector<Runner> all{reference_runner()};
  for (Isa isa : usable_isas()) all.push_back(runner_of(isa, 1, DType::f32));
  return all;
}

void expect_weights(const Chosen& got, const std::vector<double>& want) {
  ASSERT_EQ(got.weights.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got.weights[i], want[i], 1e-6) << i;
}

TEST(Router, WeighsTheBestExperts) {
  const double a = std::exp(1.0), b = std::exp(2.0), c = std::exp(0.5), all = a + b + c + 1;
  for (const Runner& r : all_runners()) {
    const std::vector<double> logits{1, 2, 0, 0.5};
    Chosen found = choose(r, logits, 2, {});
    EXPECT_EQ(found.ids, (std::vector<int32_t>{1, 0}));
    expect_weights(found, {b / (a + b), a / (a + b)});
    found = choose(r, logits, 3, {.norm = false, .scale = 2});
    EXPECT_EQ(found.ids, (std::vector<int32_t>{1, 0, 3}));
    expect_weights(found, {2 * b / all, 2 * a / all, 2 * c / all});
    const auto s = [](double x) { return 1 / (1 + std::exp(-x)); };
    found = choose(r, logits, 2, {.kind = Router::sigmoid});
    EXPECT_EQ(found.ids, (std::vector<int32_t>{1, 0}));
    expect_weights(found, {s(2) / (s(2) + s(1)), s(1) / (s(2) + s(1))});
  }
}

TEST(Router, ABiasMovesTheChoiceAndNotTheWeights) {
  const auto s = [](double x) { return 1 / (1 + std::exp(-x)); };
  for (const Runner& r : all_runners()) {
    const Chosen found =
        choose(r, {1, 2, 0, 0.5}, 2, {.kind = Router::sigmoid, .norm = false}, {0, 0, 0.5, -0.25});
    EXPECT_EQ(found.ids, (std::vector<int32_t>{2, 1}));  // 0.5 + 0.5 before 0.88
    expect_weights(found, {s(0), s(2)});
  }
}

TEST(Router, OfEqualExpertsTakesTheFirst) {
  for (const Runner& r : all_runners())
    EXPECT_EQ(choose(r, {0, 3, 1, 3, 3, 1}, 5, {}).ids, (std::vector<int32_t>{1, 3, 4, 2, 5}));
}

TEST(Router, TakesGroupsByTheirTwoBest) {
  for (const Runner& r : all_runners()) {
    // The second group has the best expert, the first and the third have the better pairs.
    const std::vector<double> logits{1, 1, -9, 2, -9, -9, 1.5, 0.9, -9};
    const Chosen found =
        choose(r, logits, 3, {.kind = Router::sigmoid, .groups = 3, .top_groups = 2});
    EXPECT_EQ(found.ids, (std::vector<int32_t>{6, 0, 1}));
  }
}

TEST(Router, ChoosesExpertsEvenOfWhatIsNoNumber) {
  const double nan = std::nan("");
  for (const Runner& r : all_runners()) {
    EXPECT_EQ(choose(r, {nan, 1, nan, 2}, 3, {}).ids, (std::vector<int32_t>{3, 1, 0}));
    EXPECT_EQ(choose(r, {nan, nan, nan}, 2, {}).ids, (std::vector<int32_t>{0, 1}));
  }
}

TEST(ExpertRows, AreSortedByExpertAndStayInOrder) {
  const std::vector<int32_t> ids{2, 0, 2, 3, 0, 2, 3, 0};
  for (const Runner& r : all_runners()) {
    const Array chosen = Array::ints({4, 2}, ids);
    Array offsets({6}, DType::i32), order({8}, DType::i32), tokens({8}, DType::i32),
        place({4, 2}, DType::i32);
    r.k.expert_rows(
        r.s, {.offsets = offsets, .order = order, .tokens = tokens, .place = place, .ids = chosen});
    EXPECT_EQ(ints_of(offsets), (std::vector<int32_t>{0, 3, 3, 6, 8, 8}));
    EXPECT_EQ(ints_of(order), (std::vector<int32_t>{1, 4, 7, 0, 2, 5, 3, 6}));
    EXPECT_EQ(ints_of(tokens), (std::vector<int32_t>{0, 2, 3, 0, 1, 2, 1, 3}));
    EXPECT_EQ(ints_of(place), (std::vector<int32_t>{3, 0, 4, 6, 1, 5, 7, 2}));
  }
}

TEST(ExpertRows, CountWithoutPadding) {
  for (const Runner& r : all_runners()) {
    const Array chosen = Array::ints({4, 2}, {2, 0, 2, 3, 0, 2, 3, 0});
    const Array counts = Array::ints({4}, {1, 0, 1, 0});
    Array offsets({6}, DType::i32), order({8}, DType::i32), tokens({8}, DType::i32),
        place({4, 2}, DType::i32), counted({6}, DType::i32);
    r.k.expert_rows(r.s, {.offsets = offsets,
                          .order = order,
                          .tokens = tokens,
                          .place = place,
                          .ids = chosen,
                          .counted = counted,
                          .counts = counts});
    EXPECT_EQ(ints_of(offsets), (std::vector<int32_t>{0, 3, 3, 6, 8, 8}));
    EXPECT_EQ(ints_of(counted), (std::vector<int32_t>{0, 2, 2, 4, 4, 4}));
  }
}

// Terms, loads and gradients are those of the tokens that count; padding has the gradient of its
// weights alone.
TEST(RouterStats, LeavePaddingOut) {
  constexpr float big = 30;
  for (const Runner& r : all_runners()) {
    const std::vector<double> real{1, 2, 0.5, -1, 0.25, 1.5};
    std::vector<double> all = real;
    all.insert(all.end(), {big, 0, 0});
    const Array alone = Array({2, 3}, real).as(r.acc), padded = Array({3, 3}, all).as(r.acc);
    const Array counts = Array::ints({3}, {1, 1, 0}), bounds = Array::ints({4}, {0, 0, 1, 2});
    const Array scalars = Array::of(Scalars{.share = 1});
    std::vector<std::vector<double>> values;
    for (const bool pads : {false, true}) {
      Array found = r.sums({3, 1}), parts = r.sums({row_parts, 3}), load({1, 3}, DType::i32);
      r.k.router_stats(r.s, {.values = found,
                             .load = load,
                             .parts = parts,
                             .logits = pads ? padded : alone,
                             .offsets = bounds,
                             .scalars = scalars,
                             .counts = pads ? Tensor(counts) : Tensor{},
                             .spec = {.k = 1}});
      EXPECT_EQ(ints_of(load), (std::vector<int32_t>{0, 1, 1}));
      Array wide({3, 1});
      reference_kernels().copy(Array::stream(), {.y = wide, .x = found});
      values.push_back({wide[0], wide[1], wide[2]});
    }
    EXPECT_EQ(values[0], values[1]);
    const Array ids = Array::ints({3, 1}, {1, 2, 0}), dweights = Array({3, 1}).as(r.acc);
    Array d = Array({3, 3}).as(r.acc);
    r.k.route_bwd(r.s, {.dlogits = d,
                        .dweights = dweights,
                        .logits = padded,
                        .ids = ids,
                        .offsets = bounds,
                        .scalars = scalars,
                        .counts = counts,
                        .spec = {.balance = 1, .z = 1}});
    Array wide({3, 3});
    reference_kernels().copy(Array::stream(), {.y = wide, .x = d});
    EXPECT_NE(wide[0], 0);
    for (const int64_t i : {6, 7, 8}) EXPECT_EQ(wide[i], 0) << i;
  }
}

TEST(RouterStats, AreOneForEqualLoads) {
  for (const Runner& r : all_runners()) {
    // Two tokens, four experts: each expert has one of the four pairs, and all scores are equal.
    const Array logits = Array({2, 4}).as(r.acc), offsets = Array::ints({5}, {0, 1, 2, 3, 4});
    const Array scalars = Array::of(Scalars{.share = 0.5f});
    Array values = r.sums({3, 1}), parts = r.sums({row_parts, 3});
    Array load = Array::ints({1, 4}, {10, 20, 30, 40});
    const auto call = [&](bool add) {
      r.k.router_stats(r.s, {.values = values,
                             .load = load,
                             .parts = parts,
                             .logits = logits,
                             .offsets = offsets,
                             .scalars = scalars,
                             .spec = {.k = 2, .part = 0.5f, .add_values = add, .add_load = add}});
    };
    const double z = std::log(4.0) * std::log(4.0), entropy = std::log(4.0);
    const auto expect = [&](double factor) {
      Array wide({3, 1});
      reference_kernels().copy(Array::stream(), {.y = wide, .x = values});
      EXPECT_NEAR(wide[0], factor, 1e-6);
      EXPECT_NEAR(wide[1], factor * z, 1e-6);
      EXPECT_NEAR(wide[2], factor * entropy, 1e-6);
    };
    call(false);
    expect(0.25);
    EXPECT_EQ(ints_of(load), (std::vector<int32_t>{1, 1, 1, 1}));
    call(true);
    expect(0.5);
    EXPECT_EQ(ints_of(load), (std::vector<int32_t>{2, 2, 2, 2}));
  }
}

TEST(BalanceBias, MovesTowardEqualLoads) {
  for (const Runner& r : all_runners())
    for (const bool skips : {false, true}) {
      Array bias = Array({4}, {1, 2, 3, 4}).as(r.acc);
      const Array load = Array::ints({1, 4}, {5, 1, 3, 3});
      const Array gate = Array::of(UpdateState{.skip = skips ? 1.0f : 0.0f});
      r.k.balance_bias(r.s, {.bias = bias, .load = load, .gate = gate, .rate = 0.25f});
      const double step = skips ? 0 : 0.25;
      expect_close(bias, Array({4}, {1 - step, 2 + step, 3, 4}), 1e-6);
    }
}

// --- models ---

ModelConfig moe_config() {
  ModelConfig c = tiny_config();
  c.moe.experts = 4;
  return c;
}

TEST(MoeConfig, RefusesWhatCannotBe) {
  const auto refusal = [](const std::function<void(ModelConfig&)>& change) {
    ModelConfig c = moe_config();
    change(c);
    return message_of([&] { c.resolve(); });
  };
  using C = ModelConfig;
  EXPECT_EQ(refusal([](C&) {}), "no error");
  EXPECT_EQ(refusal([](C& c) { c.moe.top_k = 5; }),
            "[model] expected top_k between 1 and 4 of 4 experts, got 5");
  EXPECT_EQ(refusal([](C& c) { c.moe.experts = 2000; }),
            "[model] expected at most 1024 experts, got 2000");
  EXPECT_EQ(refusal([](C& c) { c.moe.experts = 0, c.moe.shared_experts = 1; }),
            "[model] shared_experts needs experts of 1 or more, got 0");
  EXPECT_EQ(refusal([](C& c) { c.moe.experts = 0, c.moe.router_bias = true; }),
            "[model] router_bias needs experts of 1 or more, got 0");
  EXPECT_EQ(refusal([](C& c) { c.moe.experts = -1; }),
            "[model] expected experts of 0 or more, got -1");
  EXPECT_EQ(refusal([](C& c) { c.mlp_bias = true; }),
            "[model] experts have no biases: set mlp_bias to false");
  EXPECT_EQ(refusal([](C& c) { c.dropout_mlp = 0.5f; }),
            "[model] experts have no dropout: expected dropout_mlp 0, got 0.5");
  EXPECT_EQ(refusal([](C& c) { c.moe.router = Router::switch_top1; }),
            "[model] the router switch chooses one expert: expected top_k 1, got 2");
  EXPECT_EQ(refusal([](C& c) { c.moe.first_dense_layers = 2; }),
            "[model] expected first_dense_layers from 0 to below the 2 layers, got 2");
  EXPECT_EQ(refusal([](C& c) { c.moe.expert_pattern = "DX"; }),
            "[model] expected an expert_pattern of E and D, got \"DX\"");
  EXPECT_EQ(refusal([](C& c) { c.moe.expert_pattern = "D"; }),
            "[model] expected experts in one of the 2 layers, got the expert_pattern \"D\"");
  EXPECT_EQ(refusal([](C& c) { c.moe.expert_groups = 3; }),
            "[model] expected expert_groups that divide 4 experts, got 3");
  EXPECT_EQ(refusal([](C& c) { c.moe.expert_groups = 2, c.moe.top_groups = 3; }),
            "[model] expected top_groups between 1 and 2 expert_groups, got 3");
  EXPECT_EQ(refusal([](C& c) { c.moe.expert_groups = 4, c.moe.top_groups = 1; }),
            "[model] expected top_k of at most 1, the experts of 1 groups, got 2");
  EXPECT_EQ(refusal([](C& c) { c.moe.router_scale = 0; }),
            "[model] expected a router_scale above 0, got 0");
  EXPECT_EQ(refusal([](C& c) { c.moe.shared_experts = -1; }),
            "[model] expected shared_experts between 0 and 1024, got -1");
  EXPECT_EQ(refusal([](C& c) { c.moe.expert_hidden = -4; }),
            "[model] expected expert_hidden between 1 and 2^31, got -4");
}

TEST(MoeConfig, HasOneFormPerModel) {
  ModelConfig a = moe_config(), b = a;
  a.layers = b.layers = 4;
  a.moe.first_dense_layers = 1;
  b.moe.expert_pattern = "DEEE";
  EXPECT_TRUE(a.resolve() == b.resolve());
  a.moe.expert_pattern = "ED", b.moe.expert_pattern = "DDED";
  EXPECT_TRUE(a.resolve() == b.resolve());
  const std::vector<LayerSpec> layers = layer_specs(a);
  for (size_t i = 0; i < layers.size(); ++i) EXPECT_EQ(layers[i].experts, i == 2 ? 4 : 0) << i;
}

TEST(MoeConfig, AdaptersLeaveRoutersAlone) {
  ModelConfig c = moe_config();
  c.lora = {.rank = 2, .alpha = 4, .targets = {"experts.router"}};
  EXPECT_NE(message_of([&] { decoder_params(c); }).find("expected targets among"),
            std::string::npos);
}

// Steps of two micro-batches of a model whose selection biases move.
struct BiasRun {
  BiasRun(Backend& b, DType dtype, Recompute recompute)
      : config(moe_config()),
        params(b, (prepare(), decoder_params(config)), dtype),
        memory(b, &params) {
    params.initialise(3);
    make_training_buffers(params, {});
    programs = std::make_unique<Programs>(ProgramSpec{.model = config,
                                                      .dtype = dtype,
                                                      .B = 2,
                                                      .T = 8,
                                                      .recompute = recompute,
                                                      .accumulates = true,
                                                      .losses = {.balance_rate = 0.01f}},
                                          memory);
    programs->update().set_state({});
  }
  void prepare() {
    config.layers = 3, config.moe.first_dense_layers = 1;
    config.moe.router = Router::sigmoid, config.moe.router_bias = true;
  }
  std::vector<LossValue> step(uint32_t n) {
    Scalars s;
    s.lr = 1e-3f, s.clip = 1, s.step = n, s.share = 0.5f;
    LossQueue terms(params.backend());
    for (uint32_t i = 0; i < 2; ++i) {
      const Batch batch = make_batch(config, 2, 8, false, int32_t(2 * n + i));
      s.micro = i, s.inv_targets = 0.5f / float(batch.count);
      programs->micro(batch, s, i == 0);
    }
    programs->send_terms(terms);
    std::vector<int32_t> load(8);
    memory.state.read<int32_t>("train.losses.router_load", load);
    loads = load;
    programs->update().run(s);
    const std::vector<LossValue> found = terms.take();
    relative = terms.expert_load();
    return found;
  }
  std::vector<float> bias(int layer) {
    return params.values(Part::weight, fmt::format("blocks.{}.mlp.router.bias", layer));
  }

  ModelConfig config;
  ParamStore params;
  Memory memory;
  std::unique_ptr<Programs> programs;
  std::vector<int32_t> loads;  // (2, 4)
  std::vector<double> relative;
};

TEST(SelectionBias, FollowsTheLoadsOfAWholeStep) {
  const auto backend = make_cpu_backend(1);
  BiasRun run(*backend, DType::f32, Recompute::none);
  std::vector<std::vector<float>> want(2, std::vector<float>(4, 0.0f));
  bool uneven = false;
  for (uint32_t n = 0; n < 4; ++n) {
    run.step(n);
    for (size_t layer = 0; layer < 2; ++layer) {
      int32_t sum = 0;
      for (size_t e = 0; e < 4; ++e) sum += run.loads[layer * 4 + e];
      EXPECT_EQ(sum, 2 * 2 * 8 * 2);  // micro-batches, sequences, tokens, experts of a token
      for (size_t e = 0; e < 4; ++e) {
        const int32_t lacking = sum - 4 * run.loads[layer * 4 + e];
        want[layer][e] += 0.01f * float((lacking > 0) - (lacking < 0));
        uneven |= lacking != 0;
      }
      EXPECT_EQ(run.bias(int(layer) + 1), want[layer]) << "step " << n;
    }
  }
  EXPECT_TRUE(uneven);
}

// bf16 could not hold steps this small beside a bias that has grown.
TEST(SelectionBias, IsHeldInFp32) {
  const auto backend = make_cpu_backend(1);
  BiasRun run(*backend, DType::bf16, Recompute::none);
  const std::string name = "blocks.1.mlp.router.bias";
  run.params.set(name, std::vector<float>{2, 2, 2, 2});
  EXPECT_EQ(run.params.get(Part::weight, name).dtype, DType::f32);
  run.step(0);
  bool any = false;
  for (const float x : run.bias(1)) {
    const float moved = std::abs(x - 2);
    EXPECT_TRUE(moved < 1e-6f || std::abs(moved - 0.01f) < 1e-6f) << x;
    any |= moved > 0;
  }
  EXPECT_TRUE(any);
}

// The router chooses by the fp32 value: in bf16 both biases would be 1.
TEST(SelectionBias, IsReadInFp32) {
  const auto backend = make_cpu_backend(1);
  ModelConfig c = moe_config();
  c.layers = 1, c.moe.experts = 2, c.moe.top_k = 1;
  c.moe.router = Router::sigmoid, c.moe.router_bias = true;
  std::vector<std::vector<int32_t>> chosen;
  for (const size_t better : {0, 1}) {
    ParamStore params(*backend, decoder_params(c), DType::bf16);
    params.initialise(3);
    const std::string router = "blocks.0.mlp.router.";
    params.set(router + "weight", std::vector<float>(size_t(2 * c.resolve().dim)));
    std::vector<float> bias{1, 1};
    bias[better] += 1e-4f;
    params.set(router + "bias", bias);
    Memory memory(*backend, &params);
    Programs programs({.model = c, .dtype = DType::bf16, .B = 1, .T = 8}, memory);
    programs.micro(make_batch(c, 1, 8, false, 1), Scalars{}, true);
    std::vector<int32_t> load(2);
    memory.state.read<int32_t>("train.losses.router_load", load);
    chosen.push_back(load);
  }
  EXPECT_EQ(chosen[0], (std::vector<int32_t>{8, 0}));
  EXPECT_EQ(chosen[1], (std::vector<int32_t>{0, 8}));
}

TEST(SelectionBias, IsNeverDecayed) {
  const auto backend = make_cpu_backend(1);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    ModelConfig c = moe_config();
    c.moe.router_bias = true;
    ParamStore params(*backend, decoder_params(c), dtype);
    params.initialise(3);
    const std::string bias = "blocks.0.mlp.router.bias", gain = "blocks.0.mlp.norm.gain";
    const std::vector<float> before{0.1f, 0.2f, 0.3f, 0.4f};
    params.set(bias, before);
    Memory memory(*backend, &params);
    UpdateProgram update("update", memory, {.decay = 0.5f, .decay_all = true});
    update.set_state({});
    Scalars s;
    s.lr = 0.1f, s.clip = 1;
    update.run(s);
    EXPECT_EQ(params.values(Part::weight, bias), before) << to_string(dtype);
    EXPECT_LT(params.values(Part::weight, gain)[0], 1) << to_string(dtype);
  }
}

TEST(SelectionBias, IsCountedOnceUnderRecomputation) {
  const auto backend = make_cpu_backend(1);
  BiasRun none(*backend, DType::f32, Recompute::none);
  none.step(0);
  for (const Recompute r : {Recompute::light, Recompute::block}) {
    BiasRun again(*backend, DType::f32, r);
    again.step(0);
    EXPECT_EQ(again.loads, none.loads);
    EXPECT_EQ(again.bias(2), none.bias(2));
  }
}

TEST(RouterTerms, AreReportedByName) {
  const auto backend = make_cpu_backend(1);
  BiasRun run(*backend, DType::f32, Recompute::none);
  const std::vector<LossValue> terms = run.step(0);
  ASSERT_EQ(terms.size(), 4u);
  EXPECT_EQ(terms[0].name, "balance_loss");
  EXPECT_NEAR(terms[0].value, 1, 0.5);
  EXPECT_EQ(terms[1].name, "router_z_loss");
  EXPECT_GT(terms[1].value, 0);
  EXPECT_EQ(terms[2].name, "router_entropy");
  EXPECT_GT(terms[2].value, 0);
  EXPECT_LE(terms[2].value, std::log(4.0) + 1e-6);
  EXPECT_EQ(terms[3].name, "expert_violation");
  double most = 0;
  for (size_t layer = 0; layer < 2; ++layer)
    for (size_t e = 0; e < 4; ++e) most = std::max(most, run.loads[layer * 4 + e] / 16.0 - 1);
  EXPECT_NEAR(terms[3].value, most, 1e-9);
  ASSERT_EQ(run.relative.size(), 4u);
  EXPECT_NEAR(run.relative[2], (run.loads[2] + run.loads[6]) / 32.0, 1e-4);
}

// Without the losses and biases, experts that start ahead stay ahead.
TEST(BalanceLoss, KeepsLoadsEven) {
  const auto backend = make_cpu_backend(1);
  const auto violation = [&](float weight) {
    ModelConfig c = moe_config();
    ParamStore params(*backend, decoder_params(c), DType::f32);
    Memory memory(*backend, &params);
    params.initialise(3);
    make_training_buffers(params, {});
    Programs programs({.model = c, .B = 4, .T = 16, .losses = {.balance_loss = weight}}, memory);
    programs.update().set_state({});
    double last = 0;
    for (uint32_t n = 0; n < 60; ++n) {
      const Batch batch = make_batch(c, 4, 16, false, int32_t(n));
      Scalars s;
      s.lr = 1e-2f, s.clip = 1, s.step = n, s.inv_targets = 1 / float(batch.count);
      LossQueue terms(*backend);
      programs.micro(batch, s, true);
      programs.send_terms(terms);
      programs.update().run(s);
      if (n >= 50) last += terms.take().back().value / 10;
    }
    return last;
  };
  EXPECT_LT(violation(1), 0.7 * violation(0));
}

// Examples teach a router the same in rows of any length.
TEST(BalanceLoss, LeavesPaddingOut) {
  const auto backend = make_cpu_backend(1);
  const Example a{.tokens = {1, 2, 3, 4, 5}, .learned = {0, 1, 1, 1, 1}},
      b{.tokens = {7, 3, 9}, .learned = {0, 1, 1}};
  struct Found {
    std::vector<LossValue> terms;
    std::vector<int32_t> load;
    std::vector<float> gradient;
  };
  const auto found_in = [&](int64_t T, int64_t B) {
    ModelConfig c = moe_config();
    c.layers = 1;
    ParamStore params(*backend, decoder_params(c), DType::f32);
    params.initialise(5);
    Memory memory(*backend, &params);
    LogprobPrograms programs({.model = c,
                              .name = "examples",
                              .dtype = DType::f32,
                              .losses = {.balance_loss = 1, .router_z_loss = 1}},
                             memory);
    const std::vector<std::vector<const Example*>> rows{{&a}, {&b}};
    Scalars s;
    s.share = 1, s.inv_targets = 1.0f / 6;
    programs.launch_train(lay_out(rows, T, false, B), s, true);
    Found f;
    programs.take_nll();
    f.terms = programs.take_terms();
    f.load.resize(4);
    memory.state.read<int32_t>("examples.losses.router_load", f.load);
    f.gradient = params.values(Part::grad, "blocks.0.mlp.router.weight");
    return f;
  };
  const Found tight = found_in(4, 2), loose = found_in(12, 4);
  EXPECT_EQ(tight.load[0] + tight.load[1] + tight.load[2] + tight.load[3], 2 * (4 + 2));
  EXPECT_EQ(tight.load, loose.load);
  ASSERT_EQ(tight.terms.size(), loose.terms.size());
  for (size_t i = 0; i < tight.terms.size(); ++i)
    EXPECT_NEAR(tight.terms[i].value, loose.terms[i].value, 1e-5) << tight.terms[i].name;
  for (size_t i = 0; i < tight.gradient.size(); ++i)
    EXPECT_NEAR(tight.gradient[i], loose.gradient[i], 1e-5);
}

// The sampler computes few rows at a time, the trainer whole batches.
TEST(MoeGrpo, SamplesToTheBitAndLeavesBiasesAlone) {
  if (!*regex_library()) GTEST_SKIP() << "built without PCRE2, whose reward the tasks use";
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int threads : {1, 2}) {
      ModelConfig c = byte_config();
      c.moe.experts = 6, c.moe.shared_experts = 1, c.moe.router = Router::sigmoid;
      c.moe.router_bias = true;
      const auto backend = make_cpu_backend(threads);
      GrpoConfig config;
      config.train_equal = true;
      GrpoTask task(*backend, config, c, dtype);
      const auto values = [&](const char* name) {
        return task.model->params.values(Part::weight, name);
      };
      const std::vector<float> bias = values("blocks.0.mlp.router.bias"),
                               router = values("blocks.0.mlp.router.weight");
      for (int i = 0; i < 3; ++i) {
        const StepFindings f = task.step();
        EXPECT_EQ(f.gap.most, 0) << to_string(dtype) << " step " << i;
        EXPECT_GT(f.gap.tokens, 0);
      }
      EXPECT_EQ(values("blocks.0.mlp.router.bias"), bias);
      EXPECT_NE(values("blocks.0.mlp.router.weight"), router);
    }
}

}  // namespace
}  // namespace hearth
