#include "optim/update.h"

#include "ops/ops.h"

namespace hearth::inline optim {

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
}

}  // namespace hearth::inline optim
