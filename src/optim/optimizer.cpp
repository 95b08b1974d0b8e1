#include "optim/optimizer.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "sys/error.h"

namespace hearth::inline optim {
namespace {

void record_group(Tape& t, const ParamStore& store, const UpdateVars& vars, Group g,
                  const RuleSpec& rule, const std::vector<SlotSpec>& slots) {
  RuleVars v{.weight = t.flat(store, Part::weight, g), .grad = t.flat(store, Part::grad, g)};
  if (store.has_master()) v.master = t.flat(store, Part::master, g);
  for (const SlotSpec& s : slots) v.slots.push_back(t.flat(store, store.slot(s.name, g), g));
  record_rule(t, rule, vars, v);
}

constexpr std::array<std::string_view, group_count> group_names{"matrix", "head", "embedding",
                                                                "vector"};

}  // namespace

void record_rule(Tape& t, const RuleSpec& rule, const UpdateVars& vars, const RuleVars& v) {
  std::vector<Var> in{v.grad, vars.gate, vars.scalars}, out{v.weight, v.master};
  if (t[v.weight].role != Role::temp) in.insert(in.end(), {v.weight, v.master});
  in.insert(in.end(), v.slots.begin(), v.slots.end());
  out.insert(out.end(), v.slots.begin(), v.slots.end());
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

GroupRates parse_rates(std::string_view text, std::string_view where) {
  GroupRates rates = same_rates;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const size_t colon = std::min(item.find(':'), item.size());
    const auto group = std::ranges::find(group_names, item.substr(0, colon));
    const std::string_view number = item.substr(std::min(item.size(), colon + 1));
    float rate = -1;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), rate);
    if (group == group_names.end() || error != std::errc{} ||
        end != number.data() + number.size() || !(rate >= 0) || !std::isfinite(rate))
      fail_usage(where,
                 "expected GROUP:FACTOR,.. with groups matrix, head, embedding and vector, "
                 "such as embedding:10,vector:2, got '{}'",
                 item);
    rates[size_t(group - group_names.begin())] = rate;
  }
  return rates;
}

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
              of_group.decay = spec.decay_of(g), of_group.rate = spec.rate_of(g);
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
