#include "optim/update.h"

#include <algorithm>
#include <utility>

#include "model/decoder.h"
#include "ops/moe.h"
#include "ops/ops.h"
#include "optim/tied_head.h"

namespace hearth::inline optim {
namespace {

// Selection biases of routers have no gradient: they follow the loads that the programs of the step
// have counted. They stay as they are where the router is frozen.
void record_balance(Tape& t, ParamStore& store, Var gate, float rate) {
  constexpr std::string_view bias_name = ".router.bias", weight_name = ".router.weight";
  std::vector<const ParamSpec*> biases;
  for (const ParamSpec& p : store.specs()) {
    if (!p.name.ends_with(bias_name)) continue;
    const std::string block = p.name.substr(0, p.name.size() - bias_name.size());
    if (store.trainable(block + std::string(weight_name))) biases.push_back(&p);
  }
  if (biases.empty() || rate == 0) return;
  const Var loads =
      t.state(router_load_name(t), {int64_t(biases.size()), biases[0]->shape[0]}, DType::i32);
  const auto launch = [rate](auto* f, Stream& s, In in, Out out) {
    f(s, {.bias = out[0], .load = in[0], .gate = in[1], .rate = rate});
  };
  for (size_t i = 0; i < biases.size(); ++i) {
    const Var bias = t.of_param(store, Part::weight, *biases[i]);
    t.push(kernel_op<&Kernels::balance_bias>("balance_bias", launch),
           {t.rows(loads, int64_t(i), 1), gate, bias}, {bias});
  }
}

// The parts of the flat gradients that an update reads: see lay_modules_apart().
std::vector<Stretch> gradient_ranges(const ParamStore& store, Updated which) {
  std::vector<Stretch> all;
  int64_t at = 0;
  for (int g = 0; g < group_count; ++g) {
    const Stretch s = stretch_of(store, Part::grad, Group(g), which);
    const int64_t begin = at + s.begin, end = at + s.end;
    at += store.range_size(Group(g));
    if (begin == end) continue;
    if (!all.empty() && all.back().end == begin)
      all.back().end = end;
    else
      all.push_back({begin, end});
  }
  return all;
}

Var squares_of(Tape& t, const ParamStore& store, Updated which) {
  const auto sum = [](auto* f, Stream& s, In in, Out out) {
    f(s, {.out = out[0], .parts = out[1], .x = in[0]});
  };
  const auto add = [](auto* f, Stream& s, In in, Out out) {
    f(s, {.y = out[0], .a = in[0], .b = in[1], .scale = 1});
  };
  const Var grads = t.flat(store, Part::grad, {});
  Var all;
  for (const Stretch& range : gradient_ranges(store, which)) {
    const Var squares = t.temp({1}, t.acc()), parts = t.temp({row_parts}, t.acc());
    t.push(kernel_op<&Kernels::sum_squares>("sum_squares", sum), {elements(t, grads, range)},
           {squares, parts});
    const Var before = std::exchange(all, squares);
    if (!before) continue;
    all = t.temp({1}, t.acc());
    t.push(kernel_op<&Kernels::add>("add_squares", add), {before, squares}, {all});
  }
  return all;
}

void record_gate(Tape& t, Var squares, Var loss, const UpdateVars& vars) {
  const auto decide = [](auto* f, Stream& s, In in, Out out) {
    f(s, {.state = out[0], .squares = in[0], .loss = in[1], .scalars = in[2]});
  };
  t.push(kernel_op<&Kernels::gate_update>("gate_update", decide),
         {squares, loss, vars.scalars, vars.gate}, {vars.gate});
}

}  // namespace

void lay_modules_apart(std::vector<ParamSpec>& all) {
  std::stable_partition(all.begin(), all.end(), [](const ParamSpec& p) {
    return is_of_module(p) && p.group == Group::matrix;
  });
}

void make_training_buffers(ParamStore& store, const UpdateSpec& spec) {
  store.declare(slots_of(spec));
  store.make_all();
}

void record_update(Tape& t, ParamStore& store, Var loss, const UpdateSpec& spec) {
  store.declare(slots_of(spec));
  if (spec.tied_head) record_tied_gradient(t, store);
  const Var gate = t.state("update", {int64_t(sizeof(UpdateState))}, DType::u8);
  const auto update = [&](Updated which, Var own_gate) {
    const UpdateVars vars{own_gate, scalars(t), which};
    record_gate(t, squares_of(t, store, which), loss, vars);
    for (const Optimizer& o : make_optimizers(spec)) o.record(t, store, vars);
  };
  if (spec.modules_apart) {
    // It takes the count of updates from the model's, so that a checkpoint needs no other state.
    const Var own_gate = t.state("update of modules", t.shape(gate), DType::u8);
    Op copy;
    copy.name = "copy_gate", copy.copies = true;
    t.push(std::move(copy), {gate}, {own_gate});
    update(Updated::model, gate), update(Updated::modules, own_gate);
  } else {
    update(Updated::all, gate);
  }
  // The table's own update, without a gradient, is overwritten. Where the gate said skip, both are
  // as equal as before.
  if (spec.tied_head) record_tied_copy(t, store, TiedSide::head);
  record_balance(t, store, gate, spec.balance_rate);
}

}  // namespace hearth::inline optim
