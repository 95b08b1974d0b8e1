#include "optim/optimizer.h"

#include "sys/error.h"

namespace hearth::inline optim {
namespace {

void record_group(Tape& t, const ParamStore& store, const UpdateVars& vars, Group g,
                  const RuleSpec& rule, const std::vector<SlotSpec>& slots) {
  const Var w = t.flat(store, Part::weight, g), grad = t.flat(store, Part::grad, g);
  const Var master = store.has_master() ? t.flat(store, Part::master, g) : Var{};
  std::vector<Var> in{grad, vars.gate, vars.scalars, w, master}, out{w, master};
  for (const SlotSpec& s : slots) {
    const Var slot = t.flat(store, store.slot(s.name, g), g);
    in.push_back(slot), out.push_back(slot);
  }
  const char* name = "";
  by_rule(rule.rule, [&]<class Rule>(Rule) { name = Rule::name; });
  const auto launch = [rule](auto* f, Stream& s, In in, Out out) {
    UpdateArgs args{.weight = out[0],
                    .master = out[1],
                    .grad = in[0],
                    .gate = in[1],
                    .scalars = in[2],
                    .spec = rule};
    std::copy(out.begin() + 2, out.end(), args.slots);
    f(s, args);
  };
  t.push(kernel_op<&Kernels::update_weights>(name, launch), std::move(in), std::move(out));
}

}  // namespace

Optimizer elementwise(const RuleSpec& rule, std::vector<SlotSpec> slots, const UpdateSpec& spec,
                      Groups groups) {
  for (SlotSpec& s : slots) s.groups = groups;
  return {.groups = groups,
          .slots = slots,
          .record = [=](Tape& t, const ParamStore& store, const UpdateVars& vars) {
            for (int i = 0; i < group_count; ++i) {
              const Group g = Group(i);
              if (!groups.has(g) || store.range_size(g) == 0) continue;
              RuleSpec of_group = rule;
              of_group.decay = spec.decay_of(g);
              record_group(t, store, vars, g, of_group, slots);
            }
          }};
}

std::vector<Optimizer> make_optimizers(const UpdateSpec& spec) {
  std::vector<Optimizer> all = known_optimizers[size_t(spec.optimizer)].make(spec);
  for (int g = 0; g < group_count; ++g) {
    int takers = 0;
    for (const Optimizer& o : all) takers += o.groups.has(Group(g));
    if (takers != 1)
      fail("optimizer", "expected one optimizer for parameter group {}, got {}", g, takers);
  }
  return all;
}

std::vector<SlotSpec> slots_of(const UpdateSpec& spec) {
  std::vector<SlotSpec> slots;
  for (const Optimizer& o : make_optimizers(spec))
    slots.insert(slots.end(), o.slots.begin(), o.slots.end());
  return slots;
}

}  // namespace hearth::inline optim
