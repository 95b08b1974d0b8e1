// A head that is tied for a part of a run: both matrices stay equal, their update is that of one
// matrix, and a tied part trains as a tied model does.
#include <cmath>
#include <limits>

#include "optim/tied_head.h"
#include "sys/error.h"
#include "unit/message_of.h"
#include "unit/optimizer_case.h"

namespace hearth {
namespace {

using namespace optim_test;

constexpr OptimizerKind kinds[] = {OptimizerKind::adamw,      OptimizerKind::adamw_bf16,
                                   OptimizerKind::adamw_8bit, OptimizerKind::lion,
                                   OptimizerKind::muon,       OptimizerKind::normuon};

// 9 rows are padded, and their 45 elements are not a whole number of blocks of 8-bit codes.
std::vector<ParamSpec> with_two_tables() {
  return {{"m", {7, 13}, Init::uniform(1), Group::matrix},
          {"positions.weight", {5, 3}, Init::uniform(1), Group::embedding},
          {"embed.weight", {9, 5}, Init::uniform(1), Group::embedding},
          {"head.weight", {9, 5}, Init::uniform(1), Group::head},
          {"v", {131}, Init::uniform(1), Group::vector}};
}

// Bytes of everything that training keeps of one parameter of a CPU's store.
std::vector<std::byte> bytes_of(ParamStore& store, const std::string& name) {
  std::vector<std::byte> all;
  for (const ParamSpec& p : store.specs()) {
    if (p.name != name) continue;
    std::vector<Part> parts{Part::weight};
    if (store.has_master()) parts.push_back(Part::master);
    for (size_t i = 0; i < store.slots().size(); ++i)
      if (store.has(slot_part(i), p)) parts.push_back(slot_part(i));
    for (const Part part : parts) {
      const Tensor t = store.get(part, name);
      all.insert(all.end(), t.data, t.data + t.bytes());
    }
  }
  return all;
}

void expect_equal_sides(ParamStore& store) {
  EXPECT_EQ(bytes_of(store, "head.weight"), bytes_of(store, "embed.weight"));
}

UpdateSpec tied(OptimizerKind kind) {
  UpdateSpec s{.optimizer = kind, .tied_head = true};
  // Settings of the two groups that are as different as can be.
  s.rates = parse_groups("embedding:30,head:2", "x");
  s.beta1s = parse_groups("embedding:0.2", "x"), s.decays = parse_groups("embedding:3", "x");
  return s;
}

UpdateState state_of(Update& u) {
  UpdateState s;
  u.memory.state.read<UpdateState>("update", std::span(&s, 1));
  return s;
}

// The head moves as one whose gradient is the sum, and the norm counts the sum once.
TEST(TiedHead, MovesAsOneMatrixByTheSumOfBothGradients) {
  const auto backend = make_cpu_backend(1);
  for (const OptimizerKind kind : kinds)
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(fmt::format("{} {}", known_optimizers[size_t(kind)].name, to_string(dtype)));
      UpdateSpec spec = tied(kind);
      Update got(*backend, dtype, spec, with_two_tables());
      spec.tied_head = false;
      Update want(*backend, dtype, spec, with_two_tables());
      for (Update* u : {&got, &want}) tie_now(u->memory, TiedSide::head);
      for (int step = 0; step < 4; ++step) {
        for (Update* u : {&got, &want}) u->set_gradients(step);
        std::vector<float> sum = want.store.values(Part::grad, "head.weight");
        const std::vector<float> table = want.store.values(Part::grad, "embed.weight");
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += table[i];
        want.store.set(Part::grad, "head.weight", sum);
        want.store.set(Part::grad, "embed.weight", std::vector<float>(table.size()));
        const Scalars s{.lr = 0.02f, .clip = 1, .step = uint32_t(step), .momentum = 0.9f};
        got.run(s), want.run(s);
        EXPECT_EQ(state_of(got).grad_norm, state_of(want).grad_norm);
        expect_equal_sides(got.store);
        for (const char* name : {"head.weight", "m", "positions.weight", "v"})
          EXPECT_EQ(bytes_of(got.store, name), bytes_of(want.store, name)) << name;
      }
      EXPECT_NE(bytes_of(got.store, "embed.weight"), bytes_of(want.store, "embed.weight"));
    }
}

TEST(TiedHead, StaysAsItIsWhenAnUpdateIsSkipped) {
  const auto backend = make_cpu_backend(1);
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(),
                  inf = std::numeric_limits<float>::infinity();
  for (const OptimizerKind kind : kinds) {
    SCOPED_TRACE(known_optimizers[size_t(kind)].name);
    Update u(*backend, DType::bf16, tied(kind), with_two_tables());
    tie_now(u.memory, TiedSide::head);
    u.run(0, 0.1f);
    const std::vector<std::byte> before = optim_test::bytes_of(u.store);
    u.memory.state.write<float>("main.loss", std::span(&nan, 1));
    u.run(1, 0.1f);
    EXPECT_EQ(state_of(u).skip, 1);
    EXPECT_EQ(optim_test::bytes_of(u.store), before);
    const float fine = 1;
    u.memory.state.write<float>("main.loss", std::span(&fine, 1));
    for (const float x : {inf, -inf, nan}) {
      u.set_gradients(2);
      std::vector<float> g = u.store.values(Part::grad, "embed.weight");
      g[7] = x;
      u.store.set(Part::grad, "embed.weight", g);
      u.run(Scalars{.lr = 0.1f, .step = 2, .momentum = 0.9f});
      EXPECT_EQ(state_of(u).skip, 1);
      EXPECT_EQ(optim_test::bytes_of(u.store), before);
    }
    u.run(3, 0.1f);
    EXPECT_EQ(state_of(u).skip, 0);
    EXPECT_NE(optim_test::bytes_of(u.store), before);
    expect_equal_sides(u.store);
  }
}

ProgramSpec untied(OptimizerKind kind, DType dtype, bool ties) {
  ProgramSpec s = small(kind, dtype);
  s.model.tied = false;
  s.accumulates = true;
  s.update.tied_head = ties;
  return s;
}

std::vector<Batch> batches(const ProgramSpec& s, int step) {
  return {cases::make_batch(s.model, 2, 8, false, 2 * step),
          cases::make_batch(s.model, 2, 8, false, 2 * step + 1)};
}

// A step of two micro-batches, without clipping: another order of the flat gradients would round
// the norm differently.
double step(Training& t, int number, float loss_scale = 1) {
  Scalars s;
  const std::vector<Batch> micro = batches(t.programs->spec(), number);
  s.lr = 3e-3f, s.clip = 0, s.inv_targets = 1 / float(micro[0].count + micro[1].count);
  s.share = 0.5f, s.step = uint32_t(number), s.momentum = 0.9f;
  s.loss_scale = loss_scale;
  for (size_t i = 0; i < micro.size(); ++i) {
    s.micro = uint32_t(i);
    t.programs->micro(micro[i], s, i == 0);
  }
  t.programs->update().run(s);
  return t.programs->loss();
}

// The model with a tied head has one matrix, in the group embedding. Sums of gradients are rounded
// in another order there.
TEST(TiedHead, TrainsAsATiedModelDoes) {
  const auto backend = make_cpu_backend(1);
  for (const OptimizerKind kind :
       {OptimizerKind::adamw, OptimizerKind::muon, OptimizerKind::adamw_8bit}) {
    SCOPED_TRACE(known_optimizers[size_t(kind)].name);
    ProgramSpec one = small(kind, DType::f32);
    one.accumulates = true;
    ASSERT_TRUE(one.model.tied);
    one.update.decays = parse_groups("embedding:0.1", "x");
    Training want(*backend, one), got(*backend, untied(kind, DType::f32, false)),
        apart(*backend, untied(kind, DType::f32, false));
    for (Training* t : {&got, &apart}) tie_now(t->memory, TiedSide::table);
    got.programs->reshape(untied(kind, DType::f32, true));
    const std::string table = "embed.weight", head = "head.weight";
    ASSERT_EQ(got.params.values(Part::weight, head), want.params.values(Part::weight, table));
    double last = 0;
    for (int i = 0; i < 12; ++i) {
      const double loss = step(got, i);
      EXPECT_NEAR(loss, step(want, i), 2e-4) << i;
      last = std::abs(loss - step(apart, i));
      expect_equal_sides(got.params);
    }
    EXPECT_GT(last, 2e-3) << "the tie changes nothing";
    const Batch held_out = batches(one, 100)[0];
    EXPECT_NEAR(got.programs->evaluate(held_out), want.programs->evaluate(held_out), 2e-4);
  }
}

void copy_all(ParamStore& to, ParamStore& from) {
  std::vector<Part> parts{Part::weight};
  if (from.has_master()) parts.push_back(Part::master);
  for (size_t i = 0; i < from.slots().size(); ++i) parts.push_back(slot_part(i));
  for (const Part p : parts) {
    const Tensor x = from.flat(p), y = to.flat(p);
    to.backend().upload(y.data, x.data, x.bytes());
  }
}

// After a tie each matrix continues by itself, from equal weights and state; a new tie takes the
// head's, and the program of the first tie still works.
TEST(TiedHead, EndsAndBeginsAgainInARun) {
  const auto backend = make_cpu_backend(1);
  for (const OptimizerKind kind : kinds) {
    SCOPED_TRACE(known_optimizers[size_t(kind)].name);
    Training run(*backend, untied(kind, DType::bf16, true)),
        other(*backend, untied(kind, DType::bf16, false));
    int n = 0;
    for (; n < 3; ++n) step(run, n);
    expect_equal_sides(run.params);
    copy_all(other.params, run.params);
    other.programs->update().set_state(run.programs->update().state());

    run.programs->reshape(untied(kind, DType::bf16, false));
    for (; n < 6; ++n) EXPECT_EQ(step(run, n), step(other, n));
    EXPECT_EQ(run.bytes(), other.bytes());
    EXPECT_NE(bytes_of(run.params, "head.weight"), bytes_of(run.params, "embed.weight"));

    const auto head = bytes_of(run.params, "head.weight");
    run.programs->reshape(untied(kind, DType::bf16, true));
    EXPECT_EQ(bytes_of(run.params, "head.weight"), head);
    expect_equal_sides(run.params);
    other.programs->update().tie_head(true);
    for (; n < 8; ++n) EXPECT_EQ(step(run, n), step(other, n));
    expect_equal_sides(run.params);
    EXPECT_EQ(run.bytes(), other.bytes());
  }
}

// fp8 rounds the head's products; the scales follow the same gradients in both programs.
TEST(TiedHead, TrainsInFp8) {
  const auto backend = make_cpu_backend(1);
  ProgramSpec s = untied(OptimizerKind::adamw, DType::bf16, true);
  s.model = ModelConfig{.vocab = 64, .context = 16, .layers = 1, .dim = 32, .heads = 2}.resolve();
  s.model.tied = false;
  s.fp8 = Fp8Recording{};
  Training t(*backend, s);
  const double first = step(t, 0);
  double last = first;
  for (int i = 1; i < 12; ++i) last = step(t, 0);
  EXPECT_LT(last, first);
  expect_equal_sides(t.params);
  s.update.tied_head = false;
  t.programs->reshape(s);
  EXPECT_LT(step(t, 0), first);
}

// fp16's loss scale multiplies both gradients.
TEST(TiedHead, SumsScaledGradients) {
  const auto backend = make_cpu_backend(1);
  const ProgramSpec s = untied(OptimizerKind::adamw, DType::f32, true);
  Training plain(*backend, s), scaled(*backend, s);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(step(plain, i), step(scaled, i, 1024)) << i;
  EXPECT_EQ(plain.bytes(), scaled.bytes());
}

TEST(TiedHead, NeedsBothMatricesAndEqualState) {
  const auto backend = make_cpu_backend(1);
  const auto record = [&](std::vector<ParamSpec> params, const std::vector<SlotSpec>& slots) {
    ParamStore store(*backend, std::move(params), DType::f32);
    store.declare(slots);
    Memory memory(*backend, &store);
    tie_now(memory, TiedSide::head);
  };
  EXPECT_EQ(message_of([&] { record(odd_params(), {}); }),
            "[--head-schedule] expected a model that trains head.weight, got one without it");
  EXPECT_EQ(message_of([&] {
              record(with_two_tables(), {{.name = "momentum", .groups = {Group::head}}});
            }),
            "[--head-schedule] this optimizer keeps momentum of only one of the head and the token "
            "embedding, which can therefore not be tied");
}

}  // namespace
}  // namespace hearth
