#include "ops/ops.h"
#include "ops/record.h"

namespace hearth::inline ops {
namespace {

void norm_backward(Tape& t, const Node& n, NormSpec spec) {
  const Var x = n.in[0], residual = n.in[1], gain = n.in[2], bias = n.in[3];
  const Var y = n.out[0], sum = n.out[1], stat = n.out[2];
  const Var dy = t.grad(y);
  if (!dy) {  // only the sum was used
    if (!sum) return;
    t.add_grad(x, t.grad(sum));
    t.add_grad(residual, t.grad(sum));
    return;
  }
  const Tape::Sink dx = residual ? Tape::Sink{t.temp(t.shape(x)), t.grad(sum)} : t.grad_sink(x);
  Tape::Sink dgain, dbias;
  Var parts;
  if (t.needs_grad(gain)) dgain = t.grad_sink(gain);
  if (t.needs_grad(bias)) dbias = t.grad_sink(bias);
  if (dgain.out || dbias.out) parts = t.temp({2 * row_parts, t.shape(x)[-1]}, t.acc());
  spec.add = bool(dgain.prior) || bool(dbias.prior);
  Op op;
  op.name = "norm_bwd";
  op.available = [](const Kernels& k) { return k.norm_bwd != nullptr; };
  static constexpr SumPlaces sums{.out = 4, .in = 7};
  op.launch = [spec](const Kernels& k, Stream& s, In in, Out out) {
    const NormBwdArgs args{.dx = out[0],
                           .dgain = out[1],
                           .dbias = out[2],
                           .parts = out[3],
                           .dy = in[0],
                           .x = in[1],
                           .gain = in[2],
                           .stat = in[3],
                           .prior = in[4],
                           .fp8 = fp8_output(in, out),
                           .spec = spec};
    launch_summed(k, s, k.norm_bwd, k.norm_bwd_sums, args, column_sums(in, out, sums));
  };
  op.inplace = {{0, 4}, {0, 0}};
  op.fp8_result = true;
  op.sums = sums;
  const Var input = t.saved(sum ? sum : x), none;
  t.push(std::move(op),
         {dy, input, gain, t.saved(stat), dx.prior, dgain.prior, dbias.prior, none, none, none},
         {dx.out, dgain.out, dbias.out, parts, none, none, none, none, none});
  if (residual) {
    t.add_grad(x, dx.out);
    t.add_grad(residual, dx.out);
  }
}

}  // namespace

Normed norm(Tape& t, Var x, Var residual, Var gain, Var bias, const NormSpec& spec) {
  const Shape s = t.shape(x);
  const Var y = t.temp(s), stat = t.temp({s.numel() / s[-1], 2}, t.acc());
  const Var sum = residual ? t.temp(s) : Var{};
  const auto launch = [spec](auto* f, Stream& s, In in, Out out) {
    f(s, {.y = out[0],
          .sum = out[1],
          .stat = out[2],
          .x = in[0],
          .residual = in[1],
          .gain = in[2],
          .bias = in[3],
          .fp8 = fp8_output(in, out),
          .spec = spec});
  };
  const char* name = spec.kind == Norm::layer ? "layer_norm" : "rms_norm";
  Op op = kernel_op<&Kernels::norm>(name, launch);
  op.inplace = {{1, 1}, {1, 0}, {0, 0}};
  op.backward = [spec](Tape& t, const Node& n) { norm_backward(t, n, spec); };
  op.norm = spec;
  op.fp8_result = true;
  t.push(std::move(op), {x, residual, gain, bias, {}, {}}, {y, sum, stat, {}, {}, {}});
  return {y, sum ? sum : x};
}

}  // namespace hearth::inline ops
