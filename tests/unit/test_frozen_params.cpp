// Parameters that are not trained: weights and nothing beside them, no gradient made for them.
#include <map>
#include <set>

#include "core/exec.h"
#include "cpu/backend.h"
#include "ops/ops.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

using test::error_of;
using test::expect_error;

TEST(Frozen, LieInTheWeightsAlone) {
  const auto backend = make_cpu_backend(1);
  const std::vector<ParamSpec> specs{{"a", {8, 8}, Init::ones(), Group::matrix, false},
                                     {"b", {4, 16}, Init::ones(), Group::matrix, true},
                                     {"v", {5}, Init::ones(), Group::vector, true},
                                     {"e", {3, 2}, Init::ones(), Group::embedding, false},
                                     {"f", {70, 2}, Init::ones(), Group::embedding, true}};
  ParamStore store(*backend, specs, DType::bf16);
  EXPECT_EQ(store.flat_size(Part::weight), 64 + 256 + 64 + 64 + 128);
  EXPECT_EQ(store.flat_size(Part::grad), 64 + 256 + 64);
  EXPECT_EQ(store.part_bytes(Part::master), 4 * (64 + 256 + 64));
  EXPECT_EQ(store.range_size(Group::matrix), 64);
  EXPECT_EQ(store.range_size(Group::embedding), 256);
  EXPECT_EQ(store.count(), 64 + 64 + 5 + 6 + 140);
  const std::byte* base = store.flat(Part::weight).data;
  EXPECT_EQ(store.get(Part::weight, "b").data - base, 0);
  EXPECT_EQ(store.get(Part::weight, "a").data - base, 2 * 384);
  EXPECT_EQ(store.range(Part::weight, Group::vector).data, store.get(Part::weight, "v").data);
  store.initialise(1);
  store.set("a", std::vector<float>(64, 3));
  EXPECT_EQ(store.values(Part::weight, "a"), std::vector<float>(64, 3));
  expect_error(error_of([&] { store.values(Part::master, "e"); }),
               "[params] expected a parameter that is trained for master weights, got e, which is "
               "frozen");
}

// Gradients of what is trained do not know what is not; those of all others are never made.
TEST(Frozen, GradientsOfTheRestAreTheSameBits) {
  const int64_t B = 2, T = 5, C = 8, V = 11;
  const std::vector<std::string> names{"embed", "positions", "gain", "shift", "w", "bias", "head"};
  const auto gradients = [&](const std::set<std::string>& trained, bool accumulate) {
    const auto backend = make_cpu_backend(1);
    Tape t(DType::f32, "p");
    t.accumulate = accumulate;
    const auto param = [&](const char* name, Shape s, Group g) {
      return t.param(name, s, Init::normal(0.5f), g, trained.contains(name));
    };
    const Var tokens = t.input("tokens", {B, T}, DType::i32),
              positions = t.input("positions", {B, T}, DType::i32);
    Var x = embed(t, tokens, param("embed", {V, C}, Group::embedding), positions,
                  param("positions", {T, C}, Group::embedding));
    const Var n = norm(t, x, {}, param("gain", {C}, Group::vector),
                       param("shift", {C}, Group::vector), {.kind = Norm::layer, .eps = 1e-5f})
                      .y;
    x = linear(t, n, param("w", {C, C}, Group::matrix),
               {.bias = param("bias", {C}, Group::vector), .residual = x});
    head_loss(t, x, param("head", {V, C}, Group::head), t.input("targets", {B, T}, DType::i32),
              {.grad = true});
    differentiate(t);
    ParamStore store(*backend, t.params, DType::f32);
    store.initialise(3);
    Memory memory(*backend, &store);
    Exec exec(std::move(t), memory);
    std::vector<int32_t> ids, at;
    for (int32_t i = 0; i < B * T; ++i) ids.push_back(i * 7 % V), at.push_back(i % T);
    memory.state.write<int32_t>("p.tokens", ids);
    memory.state.write<int32_t>("p.targets", at);
    memory.state.write<int32_t>("p.positions", at);
    Scalars scalars;
    scalars.inv_targets = 0.1f;
    memory.state.write<Scalars>("scalars", std::span<const Scalars>(&scalars, 1));
    for (const std::string& name : trained)  // what accumulation adds to
      store.set(Part::grad, name,
                std::vector<float>(size_t(store.get(Part::grad, name).numel()), 1));
    exec.run();
    std::map<std::string, std::vector<float>> r;
    for (const std::string& name : trained) r[name] = store.values(Part::grad, name);
    return r;
  };
  const std::set<std::string> all(names.begin(), names.end());
  for (const bool accumulate : {false, true}) {
    const auto want = gradients(all, accumulate);
    for (size_t mask = 1; mask + 1 < size_t(1) << names.size(); ++mask) {
      std::set<std::string> some;
      for (size_t i = 0; i < names.size(); ++i)
        if (mask >> i & 1) some.insert(names[i]);
      for (const auto& [name, values] : gradients(some, accumulate))
        ASSERT_EQ(values, want.at(name)) << name << " with mask " << mask;
    }
  }
}

}  // namespace
}  // namespace hearth
