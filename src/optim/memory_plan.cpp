#include "optim/memory_plan.h"

#include <algorithm>

#include "core/plan.h"
#include "cpu/reference/reference.h"
#include "model/decoder.h"
#include "sys/error.h"
#include "sys/memory.h"

namespace hearth::inline optim {
namespace {

constexpr double gib = 1 << 30;

int64_t table_bytes(const Tape& t) {
  int64_t bytes = 0;
  for (const auto& [id, make] : t.tables)
    bytes += t.values[size_t(id)].shape.numel() * size_of(t.values[size_t(id)].dtype);
  return bytes;
}

int64_t fp8_bytes(const Tape& t) {
  int64_t bytes = 0;
  for (const Value& v : t.values)
    if (v.role == Role::state && is_fp8(v.dtype)) bytes += v.shape.numel();
  return bytes;
}

// What the update program needs of the arena: next to nothing for an elementwise optimizer, several
// matrices for Muon.
int64_t update_arena(const Tape& t, const UpdateSpec& update) {
  const auto backend = make_reference_backend();  // allocates nothing: no buffer is asked for
  ParamStore store(*backend, t.params, t.dtype());
  Tape u(t.dtype(), "update");
  record_update(u, store, u.rows(u.loss_values(), 0, 1), update);
  simplify(u);
  return plan(u).arena_bytes;
}

}  // namespace

MemoryNeed memory_need(Tape t, const UpdateSpec& update) {
  int64_t elements = 0, trained = 0;
  for (const ParamSpec& p : t.params) {
    elements += padded_size(p);
    if (p.trainable) trained += padded_size(p);
  }
  simplify(t);
  const Plan p = plan(t);
  const int64_t acc = size_of(t.acc());
  int64_t state = 0;
  for (const SlotSpec& slot : slots_of(update)) state += slot_bytes(slot, t.params, t.acc());
  return {.weights = elements * size_of(t.dtype()),
          .masters = t.dtype() == t.acc() ? 0 : trained * acc,
          .gradients = trained * acc,
          .optimizer_state = state,
          .activations = std::max(p.arena_bytes, update_arena(t, update)),
          .fp8_weights = fp8_bytes(t),
          .tables = table_bytes(t),
          .activation_bound = p.bound_bytes};
}

std::string describe(const MemoryNeed& m) {
  const bool small = double(m.total()) < gib;
  const double unit = small ? 1 << 20 : gib;
  std::string s = fmt::format("weights {:.2f}", double(m.weights) / unit);
  const auto add = [&](const char* what, int64_t bytes) {
    if (bytes) s += fmt::format(" + {} {:.2f}", what, double(bytes) / unit);
  };
  if (!m.offload) add("masters", m.masters);
  add("fp8 copies", m.fp8_weights);
  add("gradients", m.gradients);
  if (!m.offload) add("optimizer state", m.optimizer_state);
  add("activations", m.activations);
  add("reference model", m.reference);
  add("rollouts", m.rollouts);
  if (double(m.tables) >= 0.005 * unit) add("position tables", m.tables);
  s += fmt::format(" = {:.2f} {}", double(m.total()) / unit, small ? "MiB" : "GiB");
  if (m.offload)
    s += fmt::format(", and {:.2f} of the host", double(m.masters + m.optimizer_state) / unit);
  return s;
}

int64_t idle_module_bytes(const ParamStore& store) {
  int64_t elements = 0;
  for (const ParamSpec& p : store.specs())
    if (is_of_module(p) && !p.trainable) elements += padded_size(p);
  return elements * size_of(store.dtype());
}

void expect_fit(const MemoryNeed& need, const MemoryBudget& budget, const std::string& remedy) {
  if (budget.fits(need.total())) return;
  fail("memory", "expected a run within {:.2f} GiB, got {}; {}", double(budget.left()) / gib,
       describe(need), remedy);
}

void expect_host_room(const char* flag, double bytes, const char* what, const std::string& got,
                      const std::string& remedy) {
  const double room = double(available_memory());
  if (bytes <= room) return;
  fail_usage(flag,
             "expected a step whose {} fit in the {:.2f} GiB of free host memory, got {}, which "
             "take {:.2f} GiB{}",
             what, room / gib, got, bytes / gib, remedy);
}

}  // namespace hearth::inline optim
