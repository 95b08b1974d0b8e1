#include "ops/ops.h"
#include "ops/record.h"
#include "sys/error.h"

namespace hearth::inline ops {

Var scalars(Tape& t) { return t.state("scalars", {int64_t(sizeof(Scalars))}, DType::u8); }

Var activation(Tape& t, Var x, Act act) {
  const int64_t cols = t.shape(x)[-1];
  const Var y = t.temp(with_cols(t.shape(x), is_glu(act) ? cols / 2 : cols));
  Op op = kernel_op<&Kernels::activation>("activation", [act](auto* f, Stream& s, In in, Out out) {
    f(s, {.y = out[0], .x = in[0], .act = act});
  });
  if (is_glu(act)) op.glu = act;
  op.backward = [act](Tape& t, const Node& n) {
    const Var dx = t.temp(t.shape(n.in[0]));
    const auto launch = [act](auto* f, Stream& s, In in, Out out) {
      f(s, {.dx = out[0], .dy = in[0], .x = in[1], .act = act});
    };
    Op slope = kernel_op<&Kernels::activation_bwd>("activation_bwd", launch);
    if (is_glu(act)) slope.glu_slope = act;
    t.push(std::move(slope), {t.grad(n.out[0]), t.saved(n.in[0])}, {dx});
    if (t.fp8) {
      const QuantiseFp8Spec slope{.act = act, .act_slope = true};
      t.fp8->sources[dx.id] = {t.grad(n.out[0]), t.saved(n.in[0]), slope};
    }
    t.add_grad(n.in[0], dx);
  };
  t.push(std::move(op), {x}, {y});
  if (t.fp8) t.fp8->sources[y.id] = {x, {}, {.act = act}};
  return y;
}

Var dropout(Tape& t, Var x, float p, const std::string& what) {
  if (p == 0) return x;
  if (p < 0 || p >= 1) fail(t.where(), "expected a dropout in [0, 1), got {}", p);
  const uint32_t salt = t.salt(what);
  const auto record = [p, salt](Tape& t, Var x) {
    const Var y = t.temp(t.shape(x));
    Op op = kernel_op<&Kernels::dropout>("dropout", [=](auto* f, Stream& s, In in, Out out) {
      f(s, {.y = out[0], .x = in[0], .scalars = in[1], .p = p, .salt = salt});
    });
    op.inplace = {{0, 0}};
    return std::pair{std::move(op), y};
  };
  auto [op, y] = record(t, x);
  op.backward = [record](Tape& t, const Node& n) {
    auto [back, dx] = record(t, t.grad(n.out[0]));
    t.push(std::move(back), {t.grad(n.out[0]), scalars(t)}, {dx});
    t.add_grad(n.in[0], dx);
  };
  t.push(std::move(op), {x, scalars(t)}, {y});
  return y;
}

Var add(Tape& t, Var a, Var b, float scale) {
  const Var y = t.temp(t.shape(a));
  const auto launch = [scale](auto* f, Stream& s, In in, Out out) {
    f(s, {.y = out[0], .a = in[0], .b = in[1], .scale = scale});
  };
  Op op = kernel_op<&Kernels::add>("add", launch);
  op.inplace = {{0, 0}, {0, 1}};
  op.backward = [scale, launch](Tape& t, const Node& n) {
    const Var dy = t.grad(n.out[0]);
    t.add_grad(n.in[0], dy);
    if (scale == 1) return t.add_grad(n.in[1], dy);
    const auto [db, prior] = t.grad_sink(n.in[1]);
    Op back = kernel_op<&Kernels::add>("add", launch);
    back.inplace = {{0, 0}};
    t.push(std::move(back), {prior, dy}, {db});
  };
  t.push(std::move(op), {a, b}, {y});
  return y;
}

}  // namespace hearth::inline ops
