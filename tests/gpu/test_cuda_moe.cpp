// Routing and sorting on the card against the CPU, at sizes that the op cases do not have. Ids and
// rows must be equal; values and gradients are compared by the op cases.
#include <fmt/format.h>

#include <random>

#include "cpu/backend.h"
#include "held.h"

namespace hearth {
namespace {

using test::card;
using test::Held;

Held ints(Backend& b, Shape s, const std::vector<int32_t>& v = {}) {
  Held h(b, s, DType::i32);
  if (!v.empty()) b.upload(h.t.data, v.data(), h.t.bytes());
  return h;
}
std::vector<int32_t> read_ints(Held& h) {
  std::vector<int32_t> v(size_t(h.t.numel()));
  h.backend.synchronize();
  h.backend.download(v.data(), h.t.data, h.t.bytes());
  return v;
}

struct RouteSize {
  int64_t T, E, k;
  RouteSpec spec = {};
  bool bias = false;
};

struct Found {
  std::vector<int32_t> ids, offsets, order, tokens, place, counted;
  std::vector<float> weights;
};

// Steps of 1/64, so that two logits are equal or far apart.
Found routed(Backend& b, const RouteSize& s) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int> steps(-200, 200);
  std::vector<float> logits(size_t(s.T * s.E)), bias(static_cast<size_t>(s.E));
  for (float& x : bias) x = float(steps(random)) / 512;  // first: the same for any T
  for (float& x : logits) x = float(steps(random)) / 64;
  Held l(b, {s.T, s.E}, DType::f32), a(b, {s.E}, DType::f32), w(b, {s.T, s.k}, DType::f32);
  l.fill(logits), a.fill(bias);
  Held ids = ints(b, {s.T, s.k}), offsets = ints(b, {s.E + 1}), order = ints(b, {s.T * s.k}),
       tokens = ints(b, {s.T * s.k}), place = ints(b, {s.T, s.k}), counted = ints(b, {s.E + 1});
  std::vector<int32_t> real;  // two thirds of the tokens count
  for (int64_t t = 0; t < s.T; ++t) real.push_back(t % 3 != 1);
  Held counts = ints(b, {s.T}, real);
  b.kernels().route(b.stream(), {.ids = ids.t,
                                 .weights = w.t,
                                 .logits = l.t,
                                 .bias = s.bias ? a.t : Tensor{},
                                 .spec = s.spec});
  b.kernels().expert_rows(b.stream(), {.offsets = offsets.t,
                                       .order = order.t,
                                       .tokens = tokens.t,
                                       .place = place.t,
                                       .ids = ids.t,
                                       .counted = counted.t,
                                       .counts = counts.t});
  b.synchronize();
  return {read_ints(ids),   read_ints(offsets), read_ints(order), read_ints(tokens),
          read_ints(place), read_ints(counted), w.read()};
}

TEST(CudaRouter, ChoosesAndSortsLikeTheCpu) {
  HEARTH_NEEDS_A_CARD();
  const auto cpu = make_cpu_backend(2);
  const RouteSpec sigmoid{.kind = Router::sigmoid, .scale = 2.5f};
  const RouteSpec grouped{.kind = Router::sigmoid, .groups = 8, .top_groups = 3};
  for (const RouteSize& s :
       {RouteSize{1, 2, 1}, RouteSize{7, 8, 2}, RouteSize{5000, 64, 4}, RouteSize{333, 257, 8},
        RouteSize{64, 1024, 64}, RouteSize{20000, 300, 3, {.norm = false}},
        RouteSize{1000, 64, 6, sigmoid, true}, RouteSize{999, 256, 8, grouped, true},
        RouteSize{65, 40, 5, {.groups = 8, .top_groups = 1}}}) {
    SCOPED_TRACE(fmt::format("T {} E {} k {} groups {}", s.T, s.E, s.k, s.spec.groups));
    const Found got = routed(card(), s), want = routed(*cpu, s);
    EXPECT_TRUE(got.ids == want.ids) << "ids";
    EXPECT_TRUE(got.offsets == want.offsets) << "offsets";
    EXPECT_TRUE(got.order == want.order) << "order";
    EXPECT_TRUE(got.tokens == want.tokens) << "tokens";
    EXPECT_TRUE(got.place == want.place) << "place";
    EXPECT_TRUE(got.counted == want.counted) << "counted";
    EXPECT_LT(test::distance(got.weights, want.weights), 1e-5);
  }
}

TEST(CudaRouter, WhatIsNoNumberChoosesExpertsToo) {
  HEARTH_NEEDS_A_CARD();
  Backend& b = card();
  Held l(b, {2, 3}, DType::f32), w(b, {2, 2}, DType::f32), ids = ints(b, {2, 2});
  l.fill({NAN, NAN, NAN, NAN, 1, 2});
  b.kernels().route(b.stream(), {.ids = ids.t, .weights = w.t, .logits = l.t});
  EXPECT_EQ(read_ints(ids), (std::vector<int32_t>{0, 1, 2, 1}));
}

// A token's experts and weights do not depend on the tokens beside it.
TEST(CudaRouter, GivesATokenTheSameBitsInAnyBatch) {
  HEARTH_NEEDS_A_CARD();
  const RouteSize all{100, 64, 4, {.kind = Router::sigmoid}, true};
  const Found whole = routed(card(), all);
  RouteSize one = all;
  one.T = 1;  // the first token of the same logits
  const Found first = routed(card(), one);
  for (size_t j = 0; j < 4; ++j) {
    EXPECT_EQ(first.ids[j], whole.ids[j]);
    EXPECT_EQ(first.weights[j], whole.weights[j]);
  }
}

TEST(CudaBalance, MovesBiasesLikeTheCpu) {
  HEARTH_NEEDS_A_CARD();
  const auto cpu = make_cpu_backend(1);
  const auto moved = [&](Backend& b, bool skip) {
    Held bias(b, {5}, DType::f32);
    bias.fill({1, 2, 3, 4, 5});
    Held load = ints(b, {1, 5}, {9, 0, 4, 3, 4}), gate(b, {8}, DType::f32);
    gate.fill({0, 0, 0, skip ? 1.0f : 0.0f, 0, 0, 0, 0});
    b.kernels().balance_bias(b.stream(),
                             {.bias = bias.t, .load = load.t, .gate = gate.t, .rate = 0.25f});
    b.synchronize();
    return bias.read();
  };
  for (const bool skip : {false, true}) EXPECT_EQ(moved(card(), skip), moved(*cpu, skip));
}

}  // namespace
}  // namespace hearth
