// The fast CPU kernels from the logits to the new weights, against the reference, for every usable
// instruction set and dtype.
#include "core/math.h"
#include "unit/cpu_case.h"

namespace hearth::cpu_test {
namespace {

TEST(CpuKernels, CrossEntropy) {
  const Array scalars = Array::of(Scalars{.inv_targets = 0.25f, .loss_scale = 2});
  for (DType d : dtypes)
    for (int64_t V : {2, 48, 257, 2500})
      for (float cap : {0.0f, 3.0f}) {
        const int64_t N = 5;
        const Array x = random({N, V}, d, 6);
        const int32_t last = int32_t(V) - 1;
        const Array targets = Array::ints({N}, {0, last, -100, last / 2, 1});
        check("cross_entropy", d, [&](const Runner& r) {
          Array nll = r.sums({N}), same = r.sums({N}), loss = r.sums({1});
          Array kept = r.in_place(x), grad = r.in_place(x);
          r.k.cross_entropy(r.s, {.nll = nll,
                                  .logits = kept,
                                  .targets = targets,
                                  .scalars = scalars,
                                  .spec = {.softcap = cap}});
          r.k.cross_entropy(r.s, {.nll = same,
                                  .logits = grad,
                                  .targets = targets,
                                  .scalars = scalars,
                                  .spec = {.softcap = cap, .grad = true}});
          r.k.mean_loss(r.s, {.loss = loss, .nll = nll, .scalars = scalars, .add = false});
          r.k.mean_loss(r.s, {.loss = loss, .nll = same, .scalars = scalars, .add = true});
          return outputs(std::move(nll), std::move(same), std::move(loss), std::move(kept),
                         std::move(grad));
        });
      }
}

// A row's loss has the same bits whichever rows are beside it.
TEST(CpuKernels, CrossEntropyRowsStandAlone) {
  const int64_t N = 6, V = 1500;
  const Array scalars = Array::of(Scalars{});
  for (DType d : dtypes) {
    const Array x = random({N, V}, d, 6), targets = Array::ints({N}, {5, 1, 9, 1499, 0, 77});
    for (Isa isa : usable_isas()) {
      const Runner run = runner_of(isa, 2, d);
      Array all = run.sums({N}), one = run.sums({1});
      run.k.cross_entropy(run.s, {.nll = all, .logits = x, .targets = targets, .scalars = scalars});
      for (int64_t i = 0; i < N; ++i) {
        const Tensor row{Tensor(x).data + i * V * size_of(d), {1, V}, d};
        const Tensor target{Tensor(targets).data + 4 * i, {1}, DType::i32};
        run.k.cross_entropy(run.s,
                            {.nll = one, .logits = row, .targets = target, .scalars = scalars});
        EXPECT_EQ(*Tensor(one).as<float>(), Tensor(all).as<float>()[i]) << i;
      }
    }
  }
}

TEST(CpuKernels, CrossEntropySurvivesExtremes) {
  const Array scalars = Array::of(Scalars{});
  for (Isa isa : usable_isas()) {
    const Runner run = runner_of(isa, 1, DType::f32);
    Array x({2, 3}, DType::f32), nll = run.sums({2});
    float* p = Tensor(x).as<float>();
    const float values[] = {1e4f, -1e4f, 0, NAN, 1, 2};
    std::copy(values, values + 6, p);
    run.k.cross_entropy(run.s, {.nll = nll,
                                .logits = x,
                                .targets = Array::ints({2}, {1, 1}),
                                .scalars = scalars,
                                .spec = {.grad = true}});
    EXPECT_NEAR(Tensor(nll).as<float>()[0], 2e4f, 1);
    EXPECT_FLOAT_EQ(p[0], 1);
    EXPECT_FLOAT_EQ(p[1], -1);
    EXPECT_TRUE(std::isnan(Tensor(nll).as<float>()[1])) << "a NaN must not be hidden";
  }
}

TEST(CpuKernels, SumSquares) {
  for (DType d : dtypes)
    for (int64_t n : {1, 63, 5000, 70001}) {
      const Array x = random({n}, d);
      check(
          "sum_squares", d,
          [&](const Runner& r) {
            Array out = r.sums({1}), parts = r.sums({64});
            r.k.sum_squares(r.s, {.out = out, .parts = parts, .x = x});
            return outputs(std::move(out));
          },
          1e-6);
    }
}

UpdateState gated(const Runner& r, float squares, float loss, const Scalars& sc,
                  UpdateState start) {
  const Array state = Array::of(start), scalars = Array::of(sc);
  const Array sq = Array({1}, {squares}).as(r.acc), l = Array({1}, {loss}).as(r.acc);
  r.k.gate_update(r.s, {.state = state, .squares = sq, .loss = l, .scalars = scalars});
  return state.to<UpdateState>();
}

TEST(CpuKernels, GateUpdate) {
  const UpdateState start{.good_steps = 4, .skipped = 2, .streak = 1};
  for (Isa isa : usable_isas()) {
    const Runner r = runner_of(isa, 1, DType::f32);
    UpdateState s = gated(r, 16, 2.5f, {.clip = 1, .loss_scale = 2}, start);
    EXPECT_FLOAT_EQ(s.grad_norm, 2);
    EXPECT_FLOAT_EQ(s.grad_scale, 1 / (2 + 1e-6f) / 2);
    EXPECT_EQ(s.good_steps, 5);
    EXPECT_EQ(s.skip, 0);
    EXPECT_EQ(s.streak, 0);
    EXPECT_EQ(s.skipped, 2);
    EXPECT_EQ(s.loss, 2.5f);
    EXPECT_EQ(gated(r, 0.25f, 1, {.clip = 1}, start).grad_scale, 1);
    EXPECT_EQ(gated(r, 100, 1, {.clip = 0}, start).grad_scale, 1);
    for (auto [squares, loss] : {std::pair{NAN, 1.0f}, std::pair{1.0f, NAN},
                                 std::pair{INFINITY, 1.0f}, std::pair{1.0f, -INFINITY}}) {
      s = gated(r, squares, loss, {.clip = 1}, start);
      EXPECT_EQ(s.skip, 1);
      EXPECT_EQ(s.grad_scale, 0);
      EXPECT_EQ(s.good_steps, 4);
      EXPECT_EQ(s.skipped, 3);
      EXPECT_EQ(s.streak, 2);
    }
  }
}

// Every rule over odd sizes, with each slot in each dtype it may have: the reference's numbers, and
// the same bits at any number of threads.
void check_rule(UpdateRule rule, int slots, DType d, int64_t n, bool with_master) {
  const Array scalars = Array::of(Scalars{.lr = 0.01f});
  const Array gate = Array::of(UpdateState{.grad_scale = 0.5f, .good_steps = 3});
  const Array skip = Array::of(UpdateState{.skip = 1});
  const RuleSpec spec{.rule = rule, .decay = 0.1f};
  const Array w = random({n}, d), exact = Array::random({n}), g = exact.as(DType::f32);
  for (int halves = 0; halves < 1 << slots; ++halves) {
    const auto dtype_of_slot = [&](int k) { return halves >> k & 1 ? DType::bf16 : DType::f32; };
    std::vector<Array> start;
    for (int k = 0; k < slots; ++k) {
      Array x = Array::random({n}, 0.1);
      // Momentum of the gradient's sign: where both cancel, a rounding decides the sign of Lion's
      // step. A second moment is positive.
      for (int64_t i = 0; i < n; ++i) x[i] = k == 0 ? std::copysign(x[i], exact[i]) : x[i] * x[i];
      start.push_back(x.as(dtype_of_slot(k)));
    }
    const auto args = [&](Tensor weight, Tensor master, std::vector<Array>& state, Tensor at) {
      UpdateArgs a{.weight = weight,
                   .master = master,
                   .grad = g,
                   .gate = at,
                   .scalars = scalars,
                   .spec = spec};
      for (int k = 0; k < slots; ++k) a.slots[k] = state[size_t(k)];
      return a;
    };
    // Rounding a slot to bf16 may go either way where float and double differ.
    check(
        "update_weights", d,
        [&](const Runner& r) {
          Array w1 = r.in_place(w), master = with_master ? r.in_place_acc(w) : Array();
          std::vector<Array> state;
          for (int k = 0; k < slots; ++k)
            state.push_back(dtype_of_slot(k) == DType::bf16 ? start[size_t(k)].as(DType::bf16)
                                                            : r.in_place_acc(start[size_t(k)]));
          for (int step = 0; step < 2; ++step)
            r.k.update_weights(r.s, args(w1, master, state, gate));
          Outputs all = outputs(std::move(w1), std::move(master));
          for (Array& s : state) all.push_back(r.acc == DType::f64 ? s.copy() : std::move(s));
          return all;
        },
        halves ? 8e-3 : 0);
    for (Isa isa : usable_isas()) {
      const Runner r = runner_of(isa, 2, d);
      const Array w1 = w.as(d);
      std::vector<Array> state;
      for (const Array& x : start) state.push_back(x.as(Tensor(x).dtype));
      r.k.update_weights(r.s, args(w1, none, state, skip));
      EXPECT_TRUE(same_bytes(w, w1));
      for (int k = 0; k < slots; ++k)
        EXPECT_TRUE(same_bytes(start[size_t(k)], state[size_t(k)])) << k;
    }
  }
}

TEST(CpuKernels, UpdateWeights) {
  for (const UpdateRule rule : update_rules)
    by_rule(rule, [&]<class Rule>(Rule) {
      SCOPED_TRACE(Rule::name);
      for (DType d : dtypes)
        for (int64_t n : {1, 37, 40001})
          for (bool with_master : {false, true}) check_rule(rule, Rule::slots, d, n, with_master);
    });
}

}  // namespace
}  // namespace hearth::cpu_test
