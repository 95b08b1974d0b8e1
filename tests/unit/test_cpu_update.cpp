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

// --- state in bf16, rounded stochastically ---

// AdamW with both moments in bf16, on the elements [begin, end) of all.
struct HalfMoments {
  HalfMoments(const Runner& r, const Array& w0) : w(r.in_place(w0)) {
    for (int k = 0; k < 2; ++k) moments.emplace_back(Tensor(w0).shape, DType::bf16);
  }
  void step(const Runner& r, const Array& g, uint32_t seed, float t, int64_t begin, int64_t end) {
    const Array scalars = Array::of(Scalars{.lr = 0.01f, .seed_lo = seed});
    const Array gate = Array::of(UpdateState{.grad_scale = 1, .good_steps = t});
    const auto part = [&](const Array& x) {
      const Tensor all = x;
      return Tensor{all.data + begin * size_of(all.dtype), {end - begin}, all.dtype};
    };
    r.k.update_weights(r.s, UpdateArgs{.weight = part(w),
                                       .slots = {part(moments[0]), part(moments[1])},
                                       .grad = part(g),
                                       .gate = gate,
                                       .scalars = scalars,
                                       .first = begin + 5});
  }
  bool same_as(const HalfMoments& o) const {
    return same_bytes(w, o.w) && same_bytes(moments[0], o.moments[0]) &&
           same_bytes(moments[1], o.moments[1]);
  }
  Array w;
  std::vector<Array> moments;
};

// The rounding of an element depends on its number, the seed and the update, and not on the range,
// the threads or the lanes it is computed in.
TEST(CpuKernels, RoundingOfMomentsBelongsToTheElement) {
  const int64_t n = 70001;
  const Array w = random({n}, DType::f32), g = random({n}, DType::f32);
  for (const Isa isa : usable_isas()) {
    const Runner r = runner_of(isa, 1, DType::f32), r3 = runner_of(isa, 3, DType::f32);
    HalfMoments one(r, w), threads(r, w), ranges(r, w), seed(r, w), later(r, w);
    for (int t = 1; t <= 2; ++t) {
      one.step(r, g, 7, float(t), 0, n), threads.step(r3, g, 7, float(t), 0, n);
      seed.step(r, g, 8, float(t), 0, n), later.step(r, g, 7, float(t + 1), 0, n);
      for (const auto& [begin, end] : {std::pair{0, 3}, {3, 40000}, {40000, int(n)}})
        ranges.step(r, g, 7, float(t), begin, end);
    }
    EXPECT_TRUE(one.same_as(threads)) << name(isa);
    EXPECT_TRUE(one.same_as(ranges)) << name(isa);
    EXPECT_FALSE(same_bytes(one.moments[0], seed.moments[0])) << name(isa);
    EXPECT_FALSE(same_bytes(one.moments[0], later.moments[0])) << name(isa);
  }
}

// Both moments keep their means, one by one and together: the halves of a word are independent.
TEST(CpuKernels, RoundingOfMomentsIsUnbiased) {
  const int64_t n = 1 << 16;
  const float m = 1 + 0.3f / 128, v = 3 + 0.7f / 64;  // between neighbours in bf16
  RoundingKey key = rounding_key({.good_steps = 3}, {.seed_lo = 5});
  int up[2] = {}, both = 0, same_as_before[2] = {}, before[2] = {};
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t word = rounding_word(key, uint32_t(i), 0u);
    int now[2];
    for (int k = 0; k < 2; ++k) {
      const float x = k ? v : m, low = k ? 3 : 1, ulp = k ? 1.0f / 64 : 1.0f / 128;
      const uint32_t bits = rounded_stochastically(__builtin_bit_cast(uint32_t, x), word, k);
      const float got = __builtin_bit_cast(float, bits);
      ASSERT_TRUE(got == low || got == low + ulp) << got;
      now[k] = got != low;
      up[k] += now[k];
      same_as_before[k] += i > 0 && now[k] == before[k];
      before[k] = now[k];
    }
    both += now[0] && now[1];
  }
  const auto expect_share = [&](int count, double p) {
    EXPECT_NEAR(double(count) / double(n), p, 5 * std::sqrt(p * (1 - p) / double(n)));
  };
  expect_share(up[0], 0.3), expect_share(up[1], 0.7), expect_share(both, 0.21);
  for (const int same : same_as_before) expect_share(same, 0.58);
  // Exact values, infinities and zeros of both signs stay what they are.
  for (const float x : {0.0f, -0.0f, 1.5f, -0x1p-130f, INFINITY, -INFINITY})
    for (const uint32_t word : {0u, 0xffffffffu})
      EXPECT_EQ(rounded_stochastically(__builtin_bit_cast(uint32_t, x), word, 0),
                __builtin_bit_cast(uint32_t, x))
          << x;
}

// The kernels round as the reference does, but where float and double lie on either side of a
// threshold; and they do not hide a NaN, whatever its bits.
TEST(CpuKernels, RoundingOfMomentsIsThatOfTheReference) {
  const int64_t n = 5003;
  const Array w = random({n}, DType::f32), g = random({n}, DType::f32), bad = g.as(DType::f32);
  const uint32_t nan = 0x7fffffff;
  std::memcpy(Tensor(bad).as<float>() + 17, &nan, 4);
  HalfMoments want(reference_runner(), w);
  want.step(reference_runner(), g, 9, 1, 0, n);
  for (const Isa isa : usable_isas()) {
    const Runner r = runner_of(isa, 2, DType::f32);
    HalfMoments got(r, w), hurt(r, w);
    got.step(r, g, 9, 1, 0, n), hurt.step(r, bad, 9, 1, 0, n);
    for (size_t k = 0; k < 2; ++k) {
      int64_t other = 0;
      for (int64_t i = 0; i < n; ++i)
        other +=
            Tensor(got.moments[k]).as<bf16>()[i].bits != Tensor(want.moments[k]).as<bf16>()[i].bits;
      EXPECT_LE(other, n / 1000) << name(isa) << " moment " << k + 1;
      EXPECT_TRUE(std::isnan(hurt.moments[k].as(DType::f64)[17])) << name(isa);
    }
  }
}

// --- state in 8-bit codes ---

// Weights with their master and AdamW's moments as codes and scales.
struct Coded {
  Coded(const Runner& r, const Array& w0, bool with_master)
      : n(Tensor(w0).numel()), w(r.in_place(w0)) {
    if (with_master) master = r.in_place_acc(w0);
    for (int k = 0; k < 2; ++k) {
      codes.emplace_back(Shape{n}, DType::u8);
      scales.emplace_back(Shape{ceil_div(n, code_block)}, DType::f32);
      for (int64_t i = 0; i < n; ++i) Tensor(codes[size_t(k)]).as<uint8_t>()[i] = uint8_t(i * 37);
      for (int64_t b = 0; b < Tensor(scales[size_t(k)]).numel(); ++b)
        Tensor(scales[size_t(k)]).as<float>()[b] = 0.1f * float(1 + b % 3);
    }
  }
  void step(const Runner& r, const Array& g, const Array& gate) {
    const Array scalars = Array::of(Scalars{.lr = 0.01f});
    UpdateArgs a{.weight = w,
                 .master = master,
                 .grad = g,
                 .gate = gate,
                 .scalars = scalars,
                 .spec = {.rule = UpdateRule::adamw, .decay = 0.1f}};
    for (size_t k = 0; k < 2; ++k) a.slots[k] = codes[k], a.scales[k] = scales[k];
    r.k.update_weights(r.s, a);
  }
  // The moments, in the arithmetic of the runner.
  Array decoded(const Runner& r, size_t k) const {
    const DynamicCode table = make_dynamic_code(k == 0);
    Array x(Shape{n});
    for (int64_t i = 0; i < n; ++i)
      x[i] = double(table.value[Tensor(codes[k]).as<uint8_t>()[i]]) *
             double(Tensor(scales[k]).as<float>()[i / code_block]);
    return x.as(r.acc);
  }
  bool same_as(const Coded& other) const {
    bool same = same_bytes(w, other.w) && same_bytes(master, other.master);
    for (size_t k = 0; k < 2; ++k)
      same = same && same_bytes(codes[k], other.codes[k]) && same_bytes(scales[k], other.scales[k]);
    return same;
  }
  int64_t n;
  Array w, master;
  std::vector<Array> codes, scales;
};

TEST(CpuKernels, UpdateWeightsInBlocksOfCodes) {
  const Array gate = Array::of(UpdateState{.grad_scale = 0.5f, .good_steps = 3});
  for (DType d : dtypes)
    for (int64_t n : {1, 255, 256, 257, 40001})
      for (bool with_master : {false, true}) {
        SCOPED_TRACE(fmt::format("{} elements", n));
        const Array w = random({n}, d), g = Array::random({n}).as(DType::f32);
        // A weight is computed from moments that are not rounded yet.
        check("weights", d, [&](const Runner& r) {
          Coded c(r, w, with_master);
          c.step(r, g, gate);
          return outputs(std::move(c.w), std::move(c.master));
        });
        // Float and double may round to neighbouring codes, which are at most 0.015 apart.
        check(
            "moments", d,
            [&](const Runner& r) {
              Coded c(r, w, with_master);
              for (int step = 0; step < 2; ++step) c.step(r, g, gate);
              return outputs(c.decoded(r, 0), c.decoded(r, 1));
            },
            0.015);
        Coded want(reference_runner(), w, with_master);
        want.step(reference_runner(), g, gate);
        for (Isa isa : usable_isas()) {
          const Runner r = runner_of(isa, 2, d);
          Coded got(r, w, with_master);
          got.step(r, g, gate);
          for (size_t k = 0; k < 2; ++k) {
            int64_t other = 0;
            for (int64_t i = 0; i < n; ++i)
              other +=
                  Tensor(got.codes[k]).as<uint8_t>()[i] != Tensor(want.codes[k]).as<uint8_t>()[i];
            EXPECT_LE(other, n / 1000) << "codes of moment " << k + 1;
          }
        }
      }
}

TEST(CpuKernels, BlocksOfCodesAreIndependentAndSkippedStepsChangeNothing) {
  const int64_t n = 3 * code_block + 17;
  const Array gate = Array::of(UpdateState{.grad_scale = 1, .good_steps = 1});
  const Array skip = Array::of(UpdateState{.skip = 1});
  const Array w = random({n}, DType::f32), g = Array::random({n}).as(DType::f32);
  const Array other = g.as(DType::f32);
  Tensor(other).as<float>()[code_block + 3] = 1000;  // in the second block
  for (Isa isa : usable_isas()) {
    const Runner r = runner_of(isa, 2, DType::f32);
    Coded a(r, w, false), b(r, w, false), skipped(r, w, false);
    const Coded start(r, w, false);
    skipped.step(r, g, skip);
    EXPECT_TRUE(skipped.same_as(start));
    a.step(r, g, gate), b.step(r, other, gate);
    EXPECT_FALSE(a.same_as(start));
    for (size_t k = 0; k < 2; ++k) {
      for (int64_t block = 0; block < 4; ++block)
        EXPECT_EQ(Tensor(a.scales[k]).as<float>()[block] == Tensor(b.scales[k]).as<float>()[block],
                  block != 1)
            << block;
      for (int64_t i = 0; i < n; ++i)
        ASSERT_TRUE(i / code_block == 1 ||
                    Tensor(a.codes[k]).as<uint8_t>()[i] == Tensor(b.codes[k]).as<uint8_t>()[i])
            << i;
    }
  }
}

}  // namespace
}  // namespace hearth::cpu_test
