#include "optim/optimizer.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

#include "model/decoder.h"
#include "sys/error.h"

namespace hearth::inline optim {
namespace {

// Elements of the groups before g.
int64_t size_before(const ParamStore& store, int g, Updated which) {
  int64_t n = 0;
  for (int before = 0; before < g; ++before) {
    const Stretch s = stretch_of(store, Part::weight, Group(before), which);
    n += s.end - s.begin;
  }
  return n;
}

void record_group(Tape& t, const ParamStore& store, const UpdateVars& vars, Group g,
                  const RuleSpec& rule, const std::vector<SlotSpec>& slots) {
  const auto range = [&](Part p) { return updated_range(t, store, p, g, vars.which); };
  RuleVars v{.weight = range(Part::weight), .grad = range(Part::grad)};
  if (store.has_master()) v.master = range(Part::master);
  for (const SlotSpec& s : slots) v.slots.push_back(range(store.slot(s.name, g)));
  // The model's elements have the numbers that they have without modules; those of modules follow.
  if (vars.which == Updated::modules) v.first = size_before(store, group_count, Updated::model);
  v.first += size_before(store, int(g), vars.which);
  record_rule(t, rule, vars, v);
}

constexpr std::array<std::string_view, group_count> group_names{"matrix", "head", "embedding",
                                                                "vector"};

}  // namespace

bool is_updated(Updated which, const ParamSpec& p) {
  return p.trainable && (which == Updated::all || is_of_module(p) == (which == Updated::modules));
}

Stretch stretch_of(const ParamStore& store, Part part, Group g, Updated which) {
  if (which == Updated::all) return {0, store.range_size(g, part)};
  Stretch all{};
  int64_t size = 0;
  for (const ParamSpec& p : store.specs()) {
    if (p.group != g || !is_updated(which, p) || !store.has(part, p)) continue;
    const int64_t at = store.begin(part, p);
    const int64_t n = part < Part::slot
                          ? padded_size(p)
                          : slot_size(store.slots()[size_t(part) - size_t(Part::slot)], p);
    all = size == 0 ? Stretch{at, at + n}
                    : Stretch{std::min(all.begin, at), std::max(all.end, at + n)};
    size += n;
  }
  if (size != all.end - all.begin)
    fail("optimizer", "expected the parameters of modules before or after all others of group {}",
         group_names[size_t(g)]);
  return all;
}

Var elements(Tape& t, Var flat, const Stretch& s) {
  constexpr int64_t width = 64;  // every parameter begins at a multiple of this
  const int64_t n = t.shape(flat).numel();
  if (s.begin == 0 && s.end == n) return flat;
  return t.rows(t.view(flat, {n / width, width}), s.begin / width, (s.end - s.begin) / width);
}

Var updated_range(Tape& t, const ParamStore& store, Part part, Group g, Updated which) {
  return elements(t, t.flat(store, part, g), stretch_of(store, part, g, which));
}

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
              const Stretch own = stretch_of(store, Part::weight, g, vars.which);
              if (!groups.has(g) || own.begin == own.end) continue;
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
