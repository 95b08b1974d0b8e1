#include "optim/optimizer.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

#include "sys/error.h"

namespace hearth::inline optim {
namespace {

void record_group(Tape& t, const ParamStore& store, const UpdateVars& vars, Group g,
                  const RuleSpec& rule, const std::vector<SlotSpec>& slots) {
  RuleVars v{.weight = t.flat(store, Part::weight, g), .grad = t.flat(store, Part::grad, g)};
  if (store.has_master()) v.master = t.flat(store, Part::master, g);
  for (const SlotSpec& s : slots) v.slots.push_back(t.flat(store, store.slot(s.name, g), g));
  for (int before = 0; before < int(g); ++before) v.first += store.range_size(Group(before));
  record_rule(t, rule, vars, v);
}

constexpr std::array<std::string_view, group_count> group_names{"matrix", "head", "embedding",
                                                                "vector"};

}  // namespace

void record_rule(Tape& t, const RuleSpec& rule, const UpdateVars& vars, const RuleVars& v) {
  std::vector<Var> in{v.grad, vars.gate, vars.scalars, v.factors},
      out{v.weight, v.master, v.squares};
  if (t[v.weight].role != Role::temp) in.insert(in.end(), {v.weight, v.master});
  for (const std::vector<Var>* state : {&v.slots, &v.scales}) {
    in.insert(in.end(), state->begin(), state->end());
    out.insert(out.end(), state->begin(), state->end());
  }
  const char* name = "";
  by_rule(rule.rule, [&]<class Rule>(Rule) { name = Rule::name; });
  const auto slots = std::ptrdiff_t(v.slots.size());
  const auto launch = [rule, slots, pieces = v.pieces, first = v.first](auto* f, Stream& s, In in,
                                                                        Out out) {
    UpdateArgs args{.weight = out[0],
                    .squares = out[2],
                    .master = out[1],
                    .grad = in[0],
                    .factors = in[3],
                    .gate = in[1],
                    .scalars = in[2],
                    .spec = rule,
                    .pieces = pieces.view(),
                    .first = first};
    std::copy_n(out.begin() + 3, slots, args.slots);
    std::copy(out.begin() + 3 + slots, out.end(), args.scales);
    f(s, args);
  };
  t.push(kernel_op<&Kernels::update_weights>(name, launch), std::move(in), std::move(out));
}

std::optional<Group> group_named(std::string_view name) {
  const auto at = std::ranges::find(group_names, name);
  if (at == group_names.end()) return {};
  return Group(at - group_names.begin());
}

GroupNumbers parse_groups(std::string_view text, std::string_view where, float below) {
  GroupNumbers numbers;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const size_t colon = std::min(item.find(':'), item.size());
    const std::optional<Group> group = group_named(item.substr(0, colon));
    const std::string_view number = item.substr(std::min(item.size(), colon + 1));
    float x = -1;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), x);
    if (!group || error != std::errc{} || end != number.data() + number.size() ||
        !(x >= 0 && x < below))
      fail_usage(where,
                 "expected GROUP:NUMBER,.. with groups matrix, head, embedding and vector and "
                 "numbers of 0 {}, such as embedding:0.5,vector:0.9, got '{}'",
                 std::isfinite(below) ? fmt::format("up to below {}", below) : "or more", item);
    if (std::exchange(numbers[size_t(*group)], x))
      fail_usage(where, "expected each group once, got {} twice", group_names[size_t(*group)]);
  }
  return numbers;
}

std::string UpdateSpec::oddity(const ParamStore& store) const {
  std::string odd;
  std::set<int> groups;
  for (const auto& [flag, numbers] : {std::pair{"--lr-factors", &rates},
                                      {"--group-beta1", &beta1s},
                                      {"--group-beta2", &beta2s},
                                      {"--group-weight-decay", &decays}})
    for (int g = 0; g < group_count; ++g)
      if ((*numbers)[size_t(g)] && store.range_size(Group(g)) == 0) {
        odd += fmt::format("{}{} sets {}", odd.empty() ? "" : ", ", flag, group_names[size_t(g)]);
        groups.insert(g);
      }
  if (odd.empty()) return {};
  return fmt::format(
      "{}, but this model trains no weights of {}: a tied head belongs to embedding, and adapters "
      "to matrix",
      odd, groups.size() == 1 ? "that group" : "those groups");
}

Optimizer elementwise(UpdateRule rule, std::vector<SlotSpec> slots, const UpdateSpec& spec,
                      Groups groups) {
  for (SlotSpec& s : slots) s.groups = groups;
  return {.groups = groups,
          .slots = slots,
          .record = [=](Tape& t, const ParamStore& store, const UpdateVars& vars) {
            for (int i = 0; i < group_count; ++i) {
              const Group g = Group(i);
              if (!groups.has(g) || store.range_size(g) == 0) continue;
              record_group(t, store, vars, g, spec.rule_of(rule, g), slots);
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
