// AdamW with 8-bit moments: 2.03 instead of 8 bytes per parameter. Each block of 256 elements of a
// parameter has one fp32 scale per moment. The update is computed in fp32 from the moments before
// they are rounded to the nearest code.
//
// Blocks are counted from the start of each parameter, so no block contains elements of two, and a
// checkpoint holds the scales of a parameter beside its codes. Where all parameters of a group fill
// whole blocks, one pass covers the group; else each has its own. Vectors keep fp32 moments: they
// are few, and errors in a gain or bias affect a whole channel.
#include <algorithm>

#include "optim/optimizer.h"

namespace hearth::inline optim {
namespace {

constexpr const char* moments[] = {"moment1", "moment2"};
constexpr const char* scales[] = {"moment1_scale", "moment2_scale"};

Shape blocks_of(const ParamSpec& p) { return {ceil_div(p.shape.numel(), code_block)}; }

SlotSpec scale_slot(const char* name, Groups groups) {
  return {.name = name, .dtype = DType::f32, .groups = groups, .shape = blocks_of};
}

// Records the update of a range; part(p) is the range's part p.
template <class PartOf>
void record_range(Tape& t, const ParamStore& store, const UpdateVars& vars, const RuleSpec& rule,
                  Group g, PartOf part) {
  RuleVars v{.weight = part(Part::weight), .grad = part(Part::grad)};
  if (store.has_master()) v.master = part(Part::master);
  for (const char* name : moments) v.slots.push_back(part(store.slot(name, g)));
  for (const char* name : scales) v.scales.push_back(part(store.slot(name, g)));
  record_rule(t, rule, vars, v);
}

void record_coded(Tape& t, const ParamStore& store, const UpdateVars& vars, const UpdateSpec& spec,
                  Group g) {
  std::vector<const ParamSpec*> params;
  for (const ParamSpec& p : store.specs())
    if (is_updated(vars.which, p) && p.group == g) params.push_back(&p);
  if (params.empty()) return;
  const RuleSpec rule = spec.rule_of(UpdateRule::adamw, g);
  // Neither the elements nor the scales have padding, so that scale i belongs to block i.
  const bool whole = std::ranges::all_of(params, [&](const ParamSpec* p) {
    return padded_size(*p) == p->shape.numel() &&
           slot_size(scale_slot(scales[0], {g}), *p) * code_block == p->shape.numel();
  });
  if (whole)
    return record_range(t, store, vars, rule, g,
                        [&](Part part) { return updated_range(t, store, part, g, vars.which); });
  for (const ParamSpec* p : params) {
    const auto scope = t.scope(p->name);
    record_range(t, store, vars, rule, g, [&](Part part) { return t.of_param(store, part, *p); });
  }
}

}  // namespace

std::vector<Optimizer> adamw_8bit(const UpdateSpec& s) {
  const Groups coded{Group::matrix, Group::head, Group::embedding};
  Optimizer o;
  o.groups = coded;
  for (const char* name : moments)
    o.slots.push_back({.name = name, .dtype = DType::u8, .groups = coded});
  for (const char* name : scales) o.slots.push_back(scale_slot(name, coded));
  o.record = [=](Tape& t, const ParamStore& store, const UpdateVars& vars) {
    for (int g = 0; g < group_count; ++g)
      if (coded.has(Group(g))) record_coded(t, store, vars, s, Group(g));
  };
  return {std::move(o), elementwise(UpdateRule::adamw, {{.name = moments[0]}, {.name = moments[1]}},
                                    s, {Group::vector})};
}

}  // namespace hearth::inline optim
