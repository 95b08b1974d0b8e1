#include "optim/update.h"

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

}  // namespace

void make_training_buffers(ParamStore& store, const UpdateSpec& spec) {
  store.declare(slots_of(spec));
  store.make_all();
}

void record_update(Tape& t, ParamStore& store, Var loss, const UpdateSpec& spec) {
  store.declare(slots_of(spec));
  if (spec.tied_head) record_tied_gradient(t, store);
  const Var grads = t.flat(store, Part::grad, {});
  const Var squares = t.temp({1}, t.acc()), parts = t.temp({row_parts}, t.acc());
  const Var gate = t.state("update", {int64_t(sizeof(UpdateState))}, DType::u8);
  const Var values = scalars(t);
  const auto sum = [](auto* f, Stream& s, In in, Out out) {
    f(s, {.out = out[0], .parts = out[1], .x = in[0]});
  };
  t.push(kernel_op<&Kernels::sum_squares>("sum_squares", sum), {grads}, {squares, parts});
  const auto decide = [](auto* f, Stream& s, In in, Out out) {
    f(s, {.state = out[0], .squares = in[0], .loss = in[1], .scalars = in[2]});
  };
  t.push(kernel_op<&Kernels::gate_update>("gate_update", decide), {squares, loss, values, gate},
         {gate});
  for (const Optimizer& o : make_optimizers(spec)) o.record(t, store, {gate, values});
  // The table's own update, without a gradient, is overwritten. Where the gate said skip, both are
  // as equal as before.
  if (spec.tied_head) record_tied_copy(t, store, TiedSide::head);
  record_balance(t, store, gate, spec.balance_rate);
}

}  // namespace hearth::inline optim
