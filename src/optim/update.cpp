#include "optim/update.h"

#include "ops/ops.h"

namespace hearth {

void record_update(Tape& t, const ParamStore& store, Var loss, const UpdateSpec& spec) {
  const Var grads = t.flat(store, Part::grad, {});
  const Var squares = t.temp({1}, t.acc()), parts = t.temp({row_parts}, t.acc());
  const Var state = t.state("update", {int64_t(sizeof(UpdateState))}, DType::u8);
  const Var values = scalars(t);
  t.push(
      kernel_op<&Kernels::sum_squares>(
          "sum_squares", [](auto* f, Stream& s, In in, Out out) { f(s, out[0], out[1], in[0]); }),
      {grads}, {squares, parts});
  t.push(kernel_op<&Kernels::gate_update>(
             "gate_update",
             [](auto* f, Stream& s, In in, Out out) { f(s, out[0], in[0], in[1], in[2]); }),
         {squares, loss, values, state}, {state});

  for (int i = 0; i < group_count; ++i) {
    const Group g = Group(i);
    if (store.range_size(g) == 0) continue;
    const bool decays = spec.decay_all || g == Group::matrix || g == Group::head;
    const AdamSpec adam{spec.beta1, spec.beta2, spec.eps, decays ? spec.decay : 0};
    const Var w = t.flat(store, Part::weight, g), m = t.flat(store, Part::moment1, g);
    const Var v = t.flat(store, Part::moment2, g), grad = t.flat(store, Part::grad, g);
    const Var master = store.has_master() ? t.flat(store, Part::master, g) : Var{};
    t.push(kernel_op<&Kernels::adamw>("adamw",
                                      [adam](auto* f, Stream& s, In in, Out out) {
                                        f(s, out[0], out[1], out[2], out[3], in[0], in[1], in[2],
                                          adam);
                                      }),
           {grad, state, values, w, master, m, v}, {w, master, m, v});
  }
}

}  // namespace hearth
