// The kernels of experts: the router's choice, the sorted rows, terms and loads, selection biases.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/reference/reference.h"
#include "unit/cpu_case.h"

namespace hearth {
namespace {

using namespace cpu_test;

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

}  // namespace
}  // namespace hearth
