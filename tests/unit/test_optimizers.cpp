// Optimizers and the state they declare: every optimizer that a run can choose takes the steps of
// its formula, lowers a loss, and goes on from its saved state to the bit.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "formats/fields.h"
#include "optim/saved_state.h"
#include "sys/error.h"
#include "sys/files/files.h"
#include "unit/message_of.h"
#include "unit/optimizer_case.h"

namespace hearth {
namespace {

using cases::Numbers;
using namespace optim_test;

std::vector<OptimizerKind> all_kinds() {
  std::vector<OptimizerKind> kinds;
  for (size_t i = 0; i < known_optimizers.size(); ++i) kinds.push_back(OptimizerKind(i));
  return kinds;
}

// One weight with its state, by the published formulas.
struct Weight {
  double w = 0, m = 0, v = 0;
};
using Formula = void (*)(Weight&, double g, int t, double lr, double decay, const UpdateSpec&);

void adamw_formula(Weight& x, double g, int t, double lr, double decay, const UpdateSpec& s) {
  const double b1 = s.beta1, b2 = s.beta2;
  x.m = b1 * x.m + (1 - b1) * g;
  x.v = b2 * x.v + (1 - b2) * g * g;
  const double mean = x.m / (1 - std::pow(b1, t)), square = x.v / (1 - std::pow(b2, t));
  x.w -= lr * (mean / (std::sqrt(square) + double(s.eps)) + decay * x.w);
}

void lion_formula(Weight& x, double g, int, double lr, double decay, const UpdateSpec& s) {
  const double c = double(s.beta1) * x.m + (1 - double(s.beta1)) * g;
  x.w -= lr * ((c > 0 ? 1 : c < 0 ? -1 : 0) + decay * x.w);
  x.m = double(s.beta2) * x.m + (1 - double(s.beta2)) * g;
}

// What an optimizer is compared to: its formula, and the slots that hold m and v.
struct Expected {
  Formula formula;
  std::vector<std::string> slots;
};
Expected expected(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::adamw:
    case OptimizerKind::adamw_bf16:
      return {adamw_formula, {"moment1", "moment2"}};
    case OptimizerKind::lion:
      return {lion_formula, {"momentum"}};
    case OptimizerKind::adamw_8bit:  // rounds a block at a time: test_adamw_8bit.cpp
    case OptimizerKind::muon:        // not elementwise: test_muon.cpp
    case OptimizerKind::normuon:
      break;
  }
  return {};
}

// State of the parameters' element `i` in slot k, as an update stores it.
double stored(double x, DType d, int step, int64_t i, int k) {
  if (d != DType::bf16) return cases::rounded(x, d);
  const RoundingKey key = rounding_key({.good_steps = float(step + 1)}, {});
  const uint32_t word = rounding_word(key, uint32_t(i), 0u);
  return std::bit_cast<float>(rounded_stochastically(std::bit_cast<uint32_t>(float(x)), word, k));
}

// Four steps of one parameter; state is rounded to the dtype of its slot after each.
std::vector<Weight> by_formula(const ParamStore& store, const ParamSpec& p,
                               std::vector<float> start, const UpdateSpec& spec, float lr) {
  const Expected e = expected(spec.optimizer);
  std::vector<Weight> all(start.size());
  for (size_t i = 0; i < all.size(); ++i) all[i].w = start[i];
  int64_t first = store.begin(Part::weight, p);
  for (int g = 0; g < int(p.group); ++g) first += store.range_size(Group(g));
  const auto dtype = [&](size_t k) { return store.dtype(store.slot(e.slots[k], p.group)); };
  const bool decays = p.group == Group::matrix || p.group == Group::head;
  for (int step = 0; step < 4; ++step) {
    const std::vector<float> g = Update::gradient(p, step);
    for (size_t i = 0; i < all.size(); ++i) {
      e.formula(all[i], g[i], step + 1, lr, decays ? spec.decay : 0, spec);
      const int64_t at = first + int64_t(i);
      all[i].m = stored(all[i].m, dtype(0), step, at, 0);
      if (e.slots.size() > 1) all[i].v = stored(all[i].v, dtype(1), step, at, 1);
    }
  }
  return all;
}

void expect_near_all(const std::vector<float>& got, const std::vector<Weight>& want,
                     double Weight::*field, double relative, double absolute) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], want[i].*field, relative * std::abs(want[i].*field) + absolute) << i;
}

TEST(Optimizers, StepIsTheFormulaInDouble) {
  constexpr float lr = 0.01f;
  std::vector<std::unique_ptr<Backend>> backends = cases::fast_backends(2);
  backends.push_back(make_reference_backend());
  for (const OptimizerKind kind : all_kinds())
    for (const auto& backend : backends)
      for (const DType dtype : {DType::f32, DType::bf16}) {
        if (!expected(kind).formula) continue;
        SCOPED_TRACE(
            fmt::format("{} {} {}", enum_name(kind), backend->describe(), to_string(dtype)));
        const UpdateSpec spec{.optimizer = kind, .decay = 0.3f};
        Update got(*backend, dtype, spec);
        std::map<std::string, std::vector<float>> start;
        const Part exact = got.store.has_master() ? Part::master : Part::weight;
        for (const ParamSpec& p : got.store.specs())
          if (p.trainable) start[p.name] = got.store.values(exact, p.name);
        const std::vector<float> frozen = got.store.values(Part::weight, "frozen");
        for (int step = 0; step < 4; ++step) got.run(step, lr);
        const Expected e = expected(kind);
        for (const ParamSpec& p : got.store.specs()) {
          if (!p.trainable) continue;
          SCOPED_TRACE(p.name);
          const std::vector<Weight> want = by_formula(got.store, p, start.at(p.name), spec, lr);
          bool halves = false;
          for (size_t k = 0; k < e.slots.size(); ++k) {
            const Part slot = got.store.slot(e.slots[k], p.group);
            const bool half = got.store.dtype(slot) == DType::bf16;
            halves = halves || half;
            expect_near_all(got.store.values(slot, p.name), want, k ? &Weight::v : &Weight::m,
                            half ? 1.0 / 128 : 1e-5, 1e-6);
          }
          expect_near_all(got.store.values(exact, p.name), want, &Weight::w, 1e-6,
                          halves ? 0.01 * double(lr) : 1e-6);
        }
        EXPECT_EQ(got.store.values(Part::weight, "frozen"), frozen);
      }
}

// --- a model ---

class SavedState : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "hearth-state-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  void save(ParamStore& store) const {
    write_safetensors(folder, "optimizer.safetensors", optimizer_tensors(store));
  }
  std::filesystem::path file() const { return folder / "optimizer.safetensors"; }
  std::filesystem::path folder;
};

TEST(Optimizers, LowerTheLossOfASmallModel) {
  const auto backend = make_cpu_backend(2);
  for (const OptimizerKind kind : all_kinds())
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(fmt::format("{} {}", enum_name(kind), to_string(dtype)));
      const ProgramSpec s = small(kind, dtype);
      Training run(*backend, s);
      const Batch batch = cases::make_batch(s.model, s.B, s.T, false);
      const double first = run.step(batch, 0.003f);
      double last = first;
      for (int i = 0; i < 60; ++i) last = run.step(batch, 0.003f);
      EXPECT_LT(last, 0.5 * first);
      EXPECT_EQ(run.programs->update().state().skipped, 0);
    }
}

TEST(Optimizers, MemoryNeedIsWhatTheyDeclare) {
  const auto backend = make_reference_backend();
  for (const OptimizerKind kind : all_kinds())
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(fmt::format("{} {}", enum_name(kind), to_string(dtype)));
      const ProgramSpec s = small(kind, dtype);
      Training run(*backend, s);
      int64_t bytes = 0;
      for (size_t i = 0; i < run.params.slots().size(); ++i)
        bytes += run.params.part_bytes(slot_part(i));
      EXPECT_EQ(memory_need(s).optimizer_state, bytes);
      EXPECT_GT(bytes, 0);
    }
}

TEST(Optimizers, LeavePaddingZero) {
  const auto backend = make_cpu_backend(2);
  for (const OptimizerKind kind : all_kinds()) {
    Update u(*backend, DType::bf16, {.optimizer = kind, .decay = 0.3f, .decay_all = true});
    for (int step = 0; step < 3; ++step) u.run(step, 0.1f);
    for (size_t i = 0; i < u.store.slots().size(); ++i) {
      const Tensor flat = u.store.flat(slot_part(i));
      Numbers all = cases::read(*backend, flat);
      for (const ParamSpec& p : u.store.specs()) {
        if (!u.store.has(slot_part(i), p)) continue;
        const Tensor t = u.store.get(slot_part(i), p.name);
        const int64_t at = (t.data - flat.data) / size_of(t.dtype);
        std::fill(all.begin() + at, all.begin() + at + t.numel(), 0.0);
      }
      for (const double x : all) ASSERT_EQ(x, 0) << u.store.name(slot_part(i));
    }
  }
}

TEST_F(SavedState, GoesOnToTheBit) {
  const auto backend = make_cpu_backend(2);
  for (const OptimizerKind kind : all_kinds())
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(fmt::format("{} {}", enum_name(kind), to_string(dtype)));
      const ProgramSpec s = small(kind, dtype);
      const Batch batch = cases::make_batch(s.model, s.B, s.T, false);
      Training whole(*backend, s), second(*backend, s);
      for (int i = 0; i < 3; ++i) whole.step(batch, 0.01f);
      save(whole.params);
      for (const ParamSpec& p : whole.params.specs())
        second.params.set(Part::weight, p.name, whole.params.values(Part::weight, p.name));
      load_optimizer(folder, second.params);
      second.programs->update().set_state(whole.programs->update().state());
      second.steps = whole.steps;
      EXPECT_EQ(whole.bytes(), second.bytes());
      for (int i = 0; i < 3; ++i) whole.step(batch, 0.01f), second.step(batch, 0.01f);
      EXPECT_EQ(whole.bytes(), second.bytes());
    }
}

TEST_F(SavedState, OfAnotherOptimizerIsAnError) {
  const auto backend = make_reference_backend();
  for (const OptimizerKind wrote : all_kinds()) {
    Update from(*backend, DType::f32, {.optimizer = wrote});
    from.run(0, 0.1f);
    save(from.store);
    for (const OptimizerKind reads : all_kinds()) {
      Update to(*backend, DType::f32, {.optimizer = reads});
      const std::string m = message_of([&] { load_optimizer(folder, to.store); });
      SCOPED_TRACE(fmt::format("{} read as {}: {}", enum_name(wrote), enum_name(reads), m));
      EXPECT_EQ(m == "no error", wrote == reads);
      EXPECT_EQ(m.find("--optimizer") != m.npos, wrote != reads);
    }
  }
  save(*std::make_unique<ParamStore>(*backend, odd_params(), DType::f32));
  Update to(*backend, DType::f32, {});
  EXPECT_EQ(message_of([&] { load_optimizer(folder, to.store); }),
            fmt::format("[{}] expected the optimizer state moment1, moment2, got none: the "
                        "checkpoint was written by another optimizer; resume with the --optimizer "
                        "that the run started with",
                        file().string()));
}

// --- what an optimizer may declare beyond those ---

Shape one_per_row(const ParamSpec& p) { return {p.shape[0]}; }

// State per matrix of some groups, beside another optimizer's state of the others.
const std::vector<SlotSpec>& mixed_slots() {
  static const std::vector<SlotSpec> slots{
      {.name = "momentum", .dtype = DType::bf16, .groups = {Group::matrix}},
      {.name = "rows", .groups = {Group::matrix}, .shape = one_per_row},
      {.name = "moment1", .groups = {Group::head, Group::embedding, Group::vector}}};
  return slots;
}

TEST(Slots, LieWhereTheirDeclarationSays) {
  const auto backend = make_reference_backend();
  ParamStore store(*backend, odd_params(), DType::bf16);
  store.declare(mixed_slots());
  store.declare(mixed_slots());  // the same again
  const Part momentum = store.slot("momentum", Group::matrix);
  const Part rows = store.slot("rows", Group::matrix), moment = store.slot("moment1", Group::head);
  EXPECT_EQ(store.dtype(momentum), DType::bf16);
  EXPECT_EQ(store.dtype(rows), DType::f32);
  // Like the weights of the group, but for the frozen one.
  EXPECT_EQ(store.range_size(Group::matrix, momentum), store.range_size(Group::matrix));
  EXPECT_EQ(store.get(momentum, "wide").data - store.flat(momentum).data, 128 * 2);
  EXPECT_EQ(store.get(Part::weight, "wide").data - store.flat(Part::weight).data, 128 * 2);
  EXPECT_EQ(store.get(rows, "m").shape, (Shape{7}));
  EXPECT_EQ(store.get(rows, "wide").data - store.flat(rows).data, 64 * 4);
  EXPECT_EQ(store.flat_size(rows), 128);
  EXPECT_EQ(store.range_size(Group::matrix, moment), 0);
  EXPECT_EQ(store.range_size(Group::vector, moment), store.range_size(Group::vector));
  EXPECT_EQ(store.get(moment, "h").data, store.flat(moment).data);
  for (size_t i = 0; i < mixed_slots().size(); ++i)
    EXPECT_EQ(slot_bytes(mixed_slots()[i], store.specs(), DType::f32),
              store.part_bytes(slot_part(i)));
}

TEST(Slots, RefuseWhatWasNotDeclared) {
  const auto backend = make_reference_backend();
  ParamStore store(*backend, odd_params(), DType::f32);
  store.declare(mixed_slots());
  EXPECT_EQ(message_of([&] { store.get(slot_part(0), "v"); }),
            "[params] expected a parameter that has momentum, got v, whose group has none");
  EXPECT_EQ(message_of([&] { store.get(slot_part(0), "frozen"); }),
            "[params] expected a parameter that is trained for momentum, got frozen, which is "
            "frozen");
  EXPECT_EQ(message_of([&] { store.slot("momentum", Group::vector); }),
            "[params] expected optimizer state that was declared, got momentum");
  EXPECT_EQ(message_of([&] { store.declare({{.name = "other"}}); }),
            "[params] the parameters already have the state of another optimizer");
  ParamStore twice(*backend, odd_params(), DType::f32);
  EXPECT_EQ(message_of([&] {
              twice.declare({{.name = "a", .groups = {Group::head}}, {.name = "a"}});
            }),
            "[params] expected one slot named a for a parameter, got two");
}

// A program may take one matrix at a time: its weight, and its state of any shape.
TEST(Slots, OfOneMatrixAreValuesOfAProgram) {
  const auto backend = make_reference_backend();
  ParamStore store(*backend, odd_params(), DType::f32);
  store.declare(mixed_slots());
  store.initialise(5);
  Memory memory(*backend, &store);
  Tape t(DType::f32);
  for (const ParamSpec& p : store.specs()) {
    if (!store.has(slot_part(0), p)) continue;
    const Var w = t.of_param(store, Part::weight, p), m = t.of_param(store, slot_part(0), p);
    t.push(kernel_op<&Kernels::copy>(
               "copy", [](auto* f, Stream& s, In in, Out out) { f(s, {.y = out[0], .x = in[0]}); }),
           {w}, {m});
  }
  EXPECT_EQ(t.nodes.size(), 2u);
  Exec exec(std::move(t), memory);
  exec.run();
  for (const char* name : {"m", "wide"}) {
    const std::vector<float> w = store.values(Part::weight, name);
    const std::vector<float> m = store.values(slot_part(0), name);
    for (size_t i = 0; i < w.size(); ++i) ASSERT_EQ(m[i], float(bf16(w[i]))) << name;
  }
}

TEST_F(SavedState, HoldsSlotsOfAnyShapeOfSomeParameters) {
  const auto backend = make_reference_backend();
  ParamStore a(*backend, odd_params(), DType::bf16), b(*backend, odd_params(), DType::bf16);
  for (ParamStore* s : {&a, &b}) s->declare(mixed_slots()), s->initialise(1);
  a.set(slot_part(0), "wide", std::vector<float>(3 * 129, 0.5f));
  a.set(slot_part(1), "m", std::vector<float>{1, 2, 3, 4, 5, 6, 7});
  a.set(slot_part(2), "v", std::vector<float>(131, 3));
  save(a);
  load_optimizer(folder, b);
  EXPECT_EQ(b.values(slot_part(0), "wide"), a.values(slot_part(0), "wide"));
  EXPECT_EQ(b.values(slot_part(1), "m"), (std::vector<float>{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(b.values(slot_part(2), "v"), a.values(slot_part(2), "v"));
  const Safetensors saved(file());
  EXPECT_EQ(saved.find("rows.v"), nullptr);
  EXPECT_EQ(saved.find("momentum.frozen"), nullptr);
  EXPECT_EQ(saved.at("momentum.wide").dtype, DType::bf16);
  EXPECT_EQ(saved.at("master.v").dtype, DType::f32);
}

}  // namespace
}  // namespace hearth
