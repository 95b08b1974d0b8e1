// Every optimizer on the GPU: the reference's steps over odd sizes, and the same bits with its
// state in host memory.
#include <fmt/format.h>

#include "cpu/backend.h"
#include "cpu/reference/reference.h"
#include "cuda_case.h"
#include "formats/fields.h"
#include "optim/tied_head.h"
#include "optim/update.h"

namespace hearth {
namespace {

using cases::Numbers;
using test::card;

std::vector<ParamSpec> odd_sizes() {
  return {{"m", {7, 13}, Init::uniform(1), Group::matrix},
          {"large", {37, 129}, Init::uniform(1), Group::matrix},
          {"blocks", {64, 64}, Init::uniform(1), Group::matrix},  // whole blocks of 8-bit codes
          {"e", {5, 3}, Init::uniform(1), Group::embedding},
          {"v", {131}, Init::uniform(1), Group::vector}};
}

// Three steps.
struct Update {
  Update(Backend& b, DType dtype, OptimizerKind kind, bool offload = false,
         std::vector<ParamSpec> params = odd_sizes())
      : Update(b, dtype, UpdateSpec{.optimizer = kind}, offload, std::move(params)) {}
  Update(Backend& b, DType dtype, const UpdateSpec& spec, bool offload,
         std::vector<ParamSpec> params)
      : store(b, std::move(params), dtype, offload), memory(b, &store) {
    store.initialise(3);
    Tape t(dtype);
    record_update(t, store, t.result("loss", {1}, t.acc()), spec);
    if (spec.tied_head) tie_now(memory, TiedSide::head);
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

std::vector<Part> parts_of(const ParamStore& store) {
  std::vector<Part> parts{Part::weight};
  for (size_t i = 0; i < store.slots().size(); ++i) parts.push_back(slot_part(i));
  return parts;
}

// A slot of 8-bit codes: few codes differ, because float and double round differently; those that
// do are neighbours.
void expect_codes_agree(Update& got, Update& want, const std::string& name) {
  const DynamicCode table = make_dynamic_code(name == "moment1");
  for (const ParamSpec& p : got.store.specs()) {
    if (p.group == Group::vector) continue;  // has fp32 moments
    SCOPED_TRACE(name + " of " + p.name);
    const auto slot = [&](Update& u, const std::string& of) {
      return cases::read(u.store.backend(), u.store.get(u.store.slot(of, p.group), p.name));
    };
    const Numbers a = slot(got, name), b = slot(want, name);
    const Numbers scales = slot(got, name + "_scale"), exact = slot(want, name + "_scale");
    EXPECT_LT(cases::error_of(scales, exact), 1e-5) << "scales";
    ASSERT_EQ(a.size(), b.size());
    int other = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      other += a[i] != b[i];
      ASSERT_NEAR(table.value[size_t(a[i])], table.value[size_t(b[i])], 0.0145)
          << "element " << i << ", codes " << a[i] << " and " << b[i];
    }
    EXPECT_LE(other, 1 + int(a.size()) / 500) << "codes that differ, of " << a.size();
  }
}

TEST(CudaOptimizers, AgreeWithTheReference) {
  HEARTH_NEEDS_A_CARD();
  const auto reference = make_reference_backend();
  for (size_t i = 0; i < known_optimizers.size(); ++i) {
    Update want(*reference, DType::f64, OptimizerKind(i));
    for (const cases::Tolerance& tolerance : test::card_tolerances) {
      SCOPED_TRACE(fmt::format("{} {}", known_optimizers[i].name, to_string(tolerance.dtype)));
      Update got(card(), tolerance.dtype, OptimizerKind(i));
      for (const Part p : parts_of(got.store)) {
        if (got.store.dtype(p) == DType::u8) {
          expect_codes_agree(got, want, got.store.name(p));
          continue;
        }
        const bool half = got.store.dtype(p) == DType::bf16;
        // A code that differs changes the next step of its weight by up to a tenth. Muon's products
        // round to bf16; test_cuda_muon.cpp compares its steps more closely.
        const bool coded = OptimizerKind(i) == OptimizerKind::adamw_8bit;
        const bool muon = OptimizerKind(i) >= OptimizerKind::muon && tolerance.dtype != DType::f32;
        const bool rounded = muon && got.store.name(p) == "neuron";
        const double least = coded ? 2e-3 : muon ? 5e-3 : 1e-4;
        const double limit = p == Part::weight ? std::max(tolerance.value, least)
                             : half            ? 8e-3
                             : rounded         ? 0.15
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
      SCOPED_TRACE(fmt::format("{} {}", known_optimizers[i].name, to_string(dtype)));
      Update near(card(), dtype, OptimizerKind(i)), far(card(), dtype, OptimizerKind(i), true);
      for (const Part p : parts_of(near.store))
        EXPECT_EQ(near.flat(p), far.flat(p)) << near.store.name(p);
    }
}

// The second and later steps are replays of a graph.
TEST(CudaOptimizers, KeepATiedHeadAndItsTableEqual) {
  HEARTH_NEEDS_A_CARD();
  const std::vector<ParamSpec> params{{"m", {7, 13}, Init::uniform(1), Group::matrix},
                                      {"embed.weight", {9, 5}, Init::uniform(1), Group::embedding},
                                      {"head.weight", {9, 5}, Init::uniform(1), Group::head}};
  for (size_t i = 0; i < known_optimizers.size(); ++i)
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bool offload : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {}{}", known_optimizers[i].name, to_string(dtype),
                                 offload ? " offloaded" : ""));
        const UpdateSpec spec{.optimizer = OptimizerKind(i), .tied_head = true};
        Update u(card(), dtype, spec, offload, params);
        std::vector<Part> parts = parts_of(u.store);
        if (u.store.has_master()) parts.push_back(Part::master);
        for (const Part p : parts) {
          if (!u.store.has(p, u.store.specs()[2])) continue;
          EXPECT_EQ(cases::read(card(), u.store.get(p, "head.weight")),
                    cases::read(card(), u.store.get(p, "embed.weight")))
              << u.store.name(p);
        }
        ParamStore start(card(), params, dtype);
        start.initialise(3);
        EXPECT_NE(u.store.values(Part::weight, "head.weight"),
                  start.values(Part::weight, "head.weight"));
      }
}

// The same codes as the CPU's kernel: both compute in fp32, up to the contraction of products and
// sums.
TEST(CudaOptimizers, CodesAreThoseOfTheCpu) {
  HEARTH_NEEDS_A_CARD();
  const auto cpu = make_cpu_backend(2);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    SCOPED_TRACE(to_string(dtype));
    Update got(card(), dtype, OptimizerKind::adamw_8bit);
    Update want(*cpu, dtype, OptimizerKind::adamw_8bit);
    for (const char* name : {"moment1", "moment2"}) expect_codes_agree(got, want, name);
    const Numbers a = got.flat(Part::weight), b = want.flat(Part::weight);
    EXPECT_LT(cases::error_of(a, b), dtype == DType::f32 ? 2e-3 : 8e-3);
    if (dtype != DType::f32) continue;
    int other = 0;
    for (size_t k = 0; k < a.size(); ++k) other += std::abs(a[k] - b[k]) > 1e-5;
    EXPECT_LE(other, 10) << "weights whose moments have other codes, of " << a.size();
  }
}

// Host memory is streamed in chunks of 4 Mi elements: the second chunk has its own codes and
// scales, and ends within a block. The second store has whole blocks, so one pass covers both
// parameters.
TEST(CudaOptimizers, CodesSpanSeveralChunksOfHostMemory) {
  HEARTH_NEEDS_A_CARD();
  const std::vector<std::vector<ParamSpec>> stores{
      {{"w", {2049, 2100}, Init::uniform(1), Group::matrix}},
      {{"w", {2048, 2176}, Init::uniform(1), Group::matrix},
       {"next", {128, 128}, Init::uniform(1), Group::matrix}}};
  for (const std::vector<ParamSpec>& large : stores)
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(fmt::format("{} parameters, {}", large.size(), to_string(dtype)));
      Update near(card(), dtype, OptimizerKind::adamw_8bit, false, large);
      Update far(card(), dtype, OptimizerKind::adamw_8bit, true, large);
      for (const Part p : parts_of(near.store)) {
        const Numbers a = near.flat(p), b = far.flat(p);
        ASSERT_EQ(a.size(), b.size());
        for (size_t i = 0; i < a.size(); ++i)
          ASSERT_EQ(a[i], b[i]) << near.store.name(p) << ", element " << i;
      }
    }
}

}  // namespace
}  // namespace hearth
