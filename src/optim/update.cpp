#include "optim/update.h"

#include "ops/ops.h"

namespace hearth {

void make_training_buffers(ParamStore& store, const UpdateSpec& spec) {
  store.declare(slots_of(spec));
  store.make_all();
}

void record_update(Tape& t, ParamStore& store, Var loss, const UpdateSpec& spec) {
  store.declare(slots_of(spec));
  const Var grads = t.flat(store, Part::grad, {});
  const Var squares = t.temp({1}, t.acc()), parts = t.temp({row_parts}, t.acc());
  const Var gate = t.state("update", {int64_t(sizeof(UpdateState))}, DType::u8);
  const Var values = scalars(t);
  t.push(
      kernel_op<&Kernels::sum_squares>(
          "sum_squares", [](auto* f, Stream& s, In in, Out out) { f(s, out[0], out[1], in[0]); }),
      {grads}, {squares, parts});
  t.push(kernel_op<&Kernels::gate_update>(
             "gate_update",
             [](auto* f, Stream& s, In in, Out out) { f(s, out[0], in[0], in[1], in[2]); }),
         {squares, loss, values, gate}, {gate});
  for (const Optimizer& o : make_optimizers(spec)) o.record(t, store, {gate, values});
}

}  // namespace hearth
