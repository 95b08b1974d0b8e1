#include "optim/tied_head.h"

#include "sys/error.h"

namespace hearth::inline optim {
namespace {

const ParamSpec& trained(const ParamStore& store, std::string_view name) {
  for (const ParamSpec& p : store.specs())
    if (p.name == name && p.trainable) return p;
  fail("--head-schedule", "expected a model that trains {}, got one without it", name);
}
const ParamSpec& head_of(const ParamStore& store) { return trained(store, "head.weight"); }
const ParamSpec& table_of(const ParamStore& store) { return trained(store, "embed.weight"); }

// What training keeps of both. An optimizer that treats the two groups differently could not
// continue one from the state of the other.
std::vector<Part> tied_parts(const ParamStore& store) {
  std::vector<Part> parts{Part::weight};
  if (store.has_master()) parts.push_back(Part::master);
  for (size_t i = 0; i < store.slots().size(); ++i) {
    const Part slot = slot_part(i);
    const bool head = store.has(slot, head_of(store)), table = store.has(slot, table_of(store));
    if (head != table)
      fail("--head-schedule",
           "this optimizer keeps {} of only one of the head and the token embedding, which can "
           "therefore not be tied",
           store.name(slot));
    if (head) parts.push_back(slot);
  }
  return parts;
}

Op copy_op(DType d) {
  Op bytes;
  bytes.name = "tie", bytes.copies = true;
  if (!is_float(d)) return bytes;
  return kernel_op<&Kernels::copy>(
      "tie", [](auto* f, Stream& s, In in, Out out) { f(s, {.y = out[0], .x = in[0]}); });
}

}  // namespace

void record_tied_gradient(Tape& t, const ParamStore& store) {
  const Var head = t.of_param(store, Part::grad, head_of(store));
  const Var table = t.of_param(store, Part::grad, table_of(store));
  const auto sum = [](float scale) {
    return kernel_op<&Kernels::add>("tie_grad", [scale](auto* f, Stream& s, In in, Out out) {
      f(s, {.y = out[0], .a = in[0], .b = in[1], .scale = scale});
    });
  };
  t.push(sum(1), {head, table}, {head});
  // x - x is 0 unless x is not finite; then neither is the head's gradient, and the update is
  // skipped.
  t.push(sum(-1), {table, table}, {table});
}

void record_tied_copy(Tape& t, const ParamStore& store, TiedSide from) {
  for (const Part part : tied_parts(store)) {
    const Var head = t.of_param(store, part, head_of(store));
    const Var table = t.of_param(store, part, table_of(store));
    const auto [x, y] = from == TiedSide::head ? std::pair{head, table} : std::pair{table, head};
    t.push(copy_op(t[x].dtype), {x}, {y});
  }
}

void tie_now(Memory& memory, TiedSide from) {
  Tape t(memory.params->dtype(), "tie");
  record_tied_copy(t, *memory.params, from);
  Exec(std::move(t), memory).run();
}

}  // namespace hearth::inline optim
