// Every optimizer on the card: the reference's steps over odd sizes, and the same bits with its
// state in the host's memory.
#include <fmt/format.h>

#include "cpu/reference/reference.h"
#include "cuda_case.h"
#include "formats/fields.h"
#include "optim/update.h"

namespace hearth {
namespace {

using cases::Numbers;
using test::card;

struct Update {
  Update(Backend& b, DType dtype, OptimizerKind kind, bool offload = false)
      : store(b,
              {{"m", {7, 13}, Init::uniform(1), Group::matrix},
               {"large", {37, 129}, Init::uniform(1), Group::matrix},
               {"e", {5, 3}, Init::uniform(1), Group::embedding},
               {"v", {131}, Init::uniform(1), Group::vector}},
              dtype, offload),
        memory(b, &store) {
    store.initialise(3);
    Tape t(dtype);
    record_update(t, store, t.result("loss", {1}, t.acc()), {.optimizer = kind});
    Exec exec(std::move(t), memory);
    for (int step = 0; step < 3; ++step) {
      for (const ParamSpec& p : store.specs()) {
        std::vector<float> g(size_t(p.shape.numel()));
        draw(g, Init::normal(1), uint64_t(100 + step), p.name);
        store.set(Part::grad, p.name, g);
      }
      Scalars s;
      s.lr = 0.01f, s.clip = 1, s.step = uint32_t(step);
      memory.state.write<Scalars>("scalars", std::span<const Scalars>(&s, 1));
      exec.run();
    }
  }
  Numbers flat(Part p) { return cases::read(store.backend(), store.flat(p)); }
  ParamStore store;
  Memory memory;
};

// Muon has no kernels on GPUs yet, and says so when its program is bound.
bool runs_here(size_t i) {
  return card().kernels().unit_matrix ||
         (OptimizerKind(i) != OptimizerKind::muon && OptimizerKind(i) != OptimizerKind::normuon);
}

std::vector<Part> parts_of(const ParamStore& store) {
  std::vector<Part> parts{Part::weight};
  for (size_t i = 0; i < store.slots().size(); ++i) parts.push_back(slot_part(i));
  return parts;
}

TEST(CudaOptimizers, AgreeWithTheReference) {
  HEARTH_NEEDS_A_CARD();
  const auto reference = make_reference_backend();
  for (size_t i = 0; i < known_optimizers.size(); ++i) {
    if (!runs_here(i)) continue;
    Update want(*reference, DType::f64, OptimizerKind(i));
    for (const cases::Tolerance& tolerance : test::card_tolerances) {
      SCOPED_TRACE(fmt::format("{} {}", known_optimizers[i].name, to_string(tolerance.dtype)));
      Update got(card(), tolerance.dtype, OptimizerKind(i));
      for (const Part p : parts_of(got.store)) {
        const bool half = got.store.dtype(p) == DType::bf16;
        const double limit = p == Part::weight ? std::max(tolerance.value, 1e-4)
                             : half            ? 8e-3
                                               : 1e-5;
        EXPECT_LT(cases::error_of(got.flat(p), want.flat(p)), limit) << got.store.name(p);
      }
    }
  }
}

TEST(CudaOptimizers, GiveTheSameBitsFromTheHostsMemory) {
  HEARTH_NEEDS_A_CARD();
  for (size_t i = 0; i < known_optimizers.size(); ++i)
    for (const DType dtype : {DType::f32, DType::bf16}) {
      if (!runs_here(i)) continue;
      SCOPED_TRACE(fmt::format("{} {}", known_optimizers[i].name, to_string(dtype)));
      Update near(card(), dtype, OptimizerKind(i)), far(card(), dtype, OptimizerKind(i), true);
      for (const Part p : parts_of(near.store))
        EXPECT_EQ(near.flat(p), far.flat(p)) << near.store.name(p);
    }
}

}  // namespace
}  // namespace hearth
