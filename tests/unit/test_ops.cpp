// The op cases: values and gradients of every op, and that attention sees only what its mask
// allows.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "cpu/reference/reference.h"
#include "op_cases.h"
#include "optim/update.h"
#include "sys/error.h"

namespace hearth::cases {
namespace {

class Ops : public testing::TestWithParam<OpCase> {
 protected:
  void for_each_size(const std::function<void(const Dims&)>& body) {
    for (const Dims& d : GetParam().small) {
      SCOPED_TRACE(
          fmt::format("B {} T {} C {} N {} H {} D {} V {}", d.B, d.T, d.C, d.N, d.H, d.D, d.V));
      body(d);
    }
  }
  std::unique_ptr<Backend> reference_ = make_reference_backend();
};

void expect_close(const std::vector<Named>& got, const std::vector<Named>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  ASSERT_FALSE(want.empty());
  for (size_t i = 0; i < got.size(); ++i) {
    double top = 0;
    for (double x : want[i].values) top = std::max(top, std::abs(x));
    if (top < 1e-9) {  // a gradient that is nothing but rounding, as of one row through softmax
      for (double x : got[i].values) EXPECT_LE(std::abs(x), tolerance) << got[i].name;
      continue;
    }
    EXPECT_LT(error_of(got[i].values, want[i].values), tolerance) << got[i].name;
  }
}

// Central differences at a few elements of every input and along one random direction.
void expect_slopes(CaseRun& run) {
  const double h = 1e-5, tolerance = 1e-5;
  run.run();
  const std::vector<Named> grads = run.gradients();
  for (const Named& g : grads) {
    const Numbers at = run.get(g.name);
    double top = 1e-4, norm = 0;
    for (double x : g.values) top = std::max(top, std::abs(x)), norm += x * x;
    const auto expect = [&](const Numbers& direction, double scale) {
      double want = 0;
      const auto moved = [&](double step) {
        Numbers x = at;
        for (size_t i = 0; i < x.size(); ++i) x[i] += step * direction[i];
        run.set(g.name, x);
        run.run();
        return run.objective();
      };
      for (size_t i = 0; i < at.size(); ++i) want += direction[i] * g.values[i];
      const double slope = (moved(h) - moved(-h)) / (2 * h);
      EXPECT_LT(std::abs(slope - want) / scale, tolerance) << g.name << " " << slope << " " << want;
    };
    for (size_t k = 0; k < 6; ++k) {
      Numbers one(at.size());
      one[k * 2654435761u % at.size()] = 1;
      expect(one, top);
    }
    std::vector<float> random(at.size());
    draw(random, Init::uniform(1), 9, g.name);
    expect(Numbers(random.begin(), random.end()), std::max(1e-3, std::sqrt(norm)));
    run.set(g.name, at);
  }
}

TEST_P(Ops, GradientsAreSlopes) {
  int checked = 0;
  for_each_size([&](const Dims& d) {
    if (d.T * d.C * d.N > 20000 || d.T * d.D > 2000) return;  // sizes for tiles, slow here
    CaseRun run(*reference_, DType::f64, GetParam(), d, DType::f32);
    ASSERT_FALSE(run.inputs().empty());
    expect_slopes(run);
    ++checked;
  });
  EXPECT_GT(checked, 0) << "no size is small enough: nothing was checked";
}

TEST_P(Ops, ValuesAndGradientsOfEveryBackend) {
  for_each_size([&](const Dims& d) {
    for (const Tolerance& tolerance : tolerances) {
      CaseRun want(*reference_, DType::f64, GetParam(), d, tolerance.dtype);
      want.run();
      for (const auto& backend : fast_backends(1)) {
        SCOPED_TRACE(fmt::format("{} {}", backend->describe(), to_string(tolerance.dtype)));
        CaseRun got(*backend, tolerance.dtype, GetParam(), d, tolerance.dtype);
        got.run();
        expect_close(got.outputs(), want.outputs(), tolerance.value);
        expect_close(with_numbers_joined(got.gradients()), with_numbers_joined(want.gradients()),
                     tolerance.gradient);
      }
    }
  });
}

TEST_P(Ops, SameBitsAtAnyThreadCount) {
  const Dims& d = GetParam().small.back();
  for (const Tolerance& tolerance : tolerances) {
    std::vector<std::vector<Named>> seen;
    for (int threads : {1, 2, 3}) {
      const auto backend = make_cpu_backend(threads);
      CaseRun run(*backend, tolerance.dtype, GetParam(), d, tolerance.dtype);
      run.run();
      seen.push_back(run.outputs());
      for (const Named& g : run.gradients()) seen.back().push_back(g);
    }
    ASSERT_FALSE(seen[0].empty());
    for (size_t i = 0; i < seen[0].size(); ++i) {
      EXPECT_TRUE(seen[1][i].values == seen[0][i].values) << seen[0][i].name << ", 2 threads";
      EXPECT_TRUE(seen[2][i].values == seen[0][i].values) << seen[0][i].name << ", 3 threads";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Ops, testing::ValuesIn(op_cases()),
                         [](const auto& info) { return info.param.name; });

class AttentionMask : public testing::TestWithParam<OpCase> {};

// Another token j leaves every row that may not see it as it was, to the bit, and moves the rest.
void expect_masked(Backend& b, DType dtype, const OpCase& c, const Dims& d) {
  CaseRun run(b, dtype, c, d, dtype);
  run.run();
  const Numbers before = run.outputs()[0].values;
  const int64_t row = int64_t(before.size()) / (d.B * d.T);
  std::map<std::string, Numbers> inputs;
  for (const std::string& name : run.inputs())  // those that belong to tokens
    if (std::ranges::find(run.tape().params, name, &ParamSpec::name) == run.tape().params.end())
      inputs[name] = run.get(name);
  for (int64_t j : {int64_t(0), d.T / 3, d.T - 1}) {
    for (const auto& [name, x] : inputs) {
      const int64_t per_token = int64_t(x.size()) / (d.B * d.T);
      Numbers other = x;
      for (int64_t i = 0; i < per_token; ++i)
        other[size_t(j * per_token + i)] = 0.3 * double(i % 5) - 1;
      run.set(name, other);
    }
    run.run();
    const Numbers after = run.outputs()[0].values;
    bool moved = false;
    for (int64_t r = 0; r < d.B * d.T; ++r) {
      const bool same = std::equal(before.begin() + r * row, before.begin() + (r + 1) * row,
                                   after.begin() + r * row);
      const bool sees = r >= j && r < d.T && c.sees(0, r, j);
      moved |= !same;
      EXPECT_TRUE(same || sees) << "row " << r << " saw token " << j;
    }
    EXPECT_TRUE(moved) << "token " << j << " changed nothing: the test is void";
    for (const auto& [name, x] : inputs) run.set(name, x);
  }
}

TEST_P(AttentionMask, HidesTheRest) {
  for (const Dims& d : GetParam().small) {
    expect_masked(*make_reference_backend(), DType::f64, GetParam(), d);
    for (const auto& backend : fast_backends(1))
      for (DType dtype : {DType::f32, DType::bf16}) {
        SCOPED_TRACE(fmt::format("{} {} T {}", backend->describe(), to_string(dtype), d.T));
        expect_masked(*backend, dtype, GetParam(), d);
      }
  }
}

INSTANTIATE_TEST_SUITE_P(, AttentionMask, testing::ValuesIn(attention_cases()),
                         [](const auto& info) { return info.param.name; });

// What no view reads would have no gradient, and what two read would lose one.
TEST(AttentionViews, MustCoverWhatHasAGradient) {
  const auto refusal = [](int64_t k_at, int64_t v_at) -> std::string {
    Tape t;
    const Var x = t.input("x", {1, 2, 9}, DType::f32);
    t[x].needs_grad = true;
    {
      const auto scope = t.scope("here");
      const Var y = attention(
          t, {{x, {2, 2, 0, 9, 2}}, {x, {1, 2, k_at, 9, 2}}, {x, {1, 3, v_at, 9, 3}}}, {}, {});
      t.add_grad(y, t.input("dy", t.shape(y), DType::f32));
    }
    try {
      differentiate(t);
    } catch (const Error& e) { return e.what(); }
    return "";
  };
  EXPECT_EQ(refusal(4, 6), "");
  EXPECT_EQ(refusal(7, 4), "");
  const std::string refused =
      "[here] expected views of q, k and v that cover each element of a token once";
  EXPECT_EQ(refusal(4, 4), refused);
  EXPECT_EQ(refusal(0, 6), refused);
}

// The update program over a store of odd sizes, three steps with the same random gradients.
struct Update {
  Update(Backend& b, DType dtype)
      : store(b,
              {{"m", {7, 13}, Init::uniform(1), Group::matrix},
               {"e", {5, 3}, Init::uniform(1), Group::embedding},
               {"v", {131}, Init::uniform(1), Group::vector}},
              dtype),
        memory(b, &store) {
    store.initialise(3);
    for (const ParamSpec& p : store.specs()) {
      std::vector<float> g(size_t(p.shape.numel()));
      draw(g, Init::normal(1), 4, p.name);
      store.set(Part::grad, p.name, g);
    }
    Tape t(dtype);
    const Var loss = t.result("loss", {1}, t.acc());
    record_update(t, store, loss, {});
    Exec exec(std::move(t), memory);
    for (int step = 0; step < 3; ++step) {
      Scalars s;
      s.lr = 0.01f, s.clip = 1, s.step = uint32_t(step);
      memory.state.write<Scalars>("scalars", std::span<const Scalars>(&s, 1));
      exec.run();
    }
  }
  Numbers flat(Part p) { return read(store.backend(), store.flat(p)); }
  ParamStore store;
  Memory memory;
};

TEST(AdamW, EveryBackendAgreesWithTheReference) {
  const auto reference = make_reference_backend();
  Update want(*reference, DType::f64);
  for (const auto& backend : fast_backends(1))
    for (const Tolerance& tolerance : tolerances) {
      SCOPED_TRACE(fmt::format("{} {}", backend->describe(), to_string(tolerance.dtype)));
      Update got(*backend, tolerance.dtype);
      for (Part p : {Part::weight, slot_part(0), slot_part(1), Part::master}) {
        if (p == Part::master && !got.store.has_master()) continue;
        const double limit = p == Part::weight ? tolerance.value : 1e-5;
        // Weights start rounded to bf16 only in the copy; masters and moments are f32 throughout.
        EXPECT_LT(error_of(got.flat(p), want.flat(p == Part::master ? Part::weight : p)), limit)
            << got.store.name(p);
      }
    }
}

TEST(AdamW, MovesWeightsByTheLearningRate) {
  const auto reference = make_reference_backend();
  ParamStore fresh(*reference, {{"v", {131}, Init::uniform(1), Group::vector}}, DType::f64);
  fresh.initialise(3);
  Update after(*reference, DType::f64);
  const std::vector<float> a = fresh.values(Part::weight, "v");
  const std::vector<float> b = after.store.values(Part::weight, "v");
  const std::vector<float> g = after.store.values(Part::grad, "v");
  for (size_t i = 0; i < a.size(); ++i)  // equal gradients: each step is lr against their sign
    EXPECT_NEAR(b[i] - a[i], g[i] > 0 ? -0.03 : 0.03, 1e-5) << i;
}

}  // namespace
}  // namespace hearth::cases
