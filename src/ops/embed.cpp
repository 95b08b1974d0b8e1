#include "core/error.h"
#include "ops/ops.h"
#include "ops/record.h"

namespace hearth {
namespace {

void embed_backward(Tape& t, const Node& n) {
  const Var ids = n.in[0], w = n.in[1], positions = n.in[2], pos_w = n.in[3];
  const auto [dw, prior] = t.grad_sink(w);
  Tape::Sink pos;
  if (pos_w) pos = t.grad_sink(pos_w);
  const EmbedSpec spec{.add = bool(prior), .add_pos = bool(pos.prior)};
  t.push(kernel_op<&Kernels::embed_bwd>("embed_bwd",
                                        [spec](auto* f, Stream& s, In in, Out out) {
                                          f(s, out[0], out[1], in[0], in[1], in[2], spec);
                                        }),
         {t.grad(n.out[0]), ids, positions, prior, pos.prior}, {dw, pos.out});
}

Op embed_op() {
  return kernel_op<&Kernels::embed>("embed", [](auto* f, Stream& s, In in, Out out) {
    f(s, out[0], in[0], in[1], in[2], in[3]);
  });
}

void gather_backward(Tape& t, const Node& n) {
  const Var ids = n.in[0], x = n.in[1];
  if (!t.needs_grad(x)) return;
  const auto [dx, prior] = t.grad_sink(x);
  Op op = kernel_op<&Kernels::scatter_rows>("scatter_rows", [](auto* f, Stream& s, In in, Out out) {
    f(s, out[0], in[0], in[1], in[2]);
  });
  op.inplace = {{0, 2}};
  t.push(std::move(op), {t.grad(n.out[0]), ids, prior}, {dx});
}

}  // namespace

Var embed(Tape& t, Var ids, Var w, Var positions, Var pos_w) {
  const Shape si = t.shape(ids);
  if (pos_w && t.shape(pos_w)[1] != t.shape(w)[1])
    fail(t.where(), "expected positions of width {}, got {}", t.shape(w)[1], t.shape(pos_w)[1]);
  const Var y = t.temp({si[0], si[1], t.shape(w)[1]});
  Op op = embed_op();
  op.backward = embed_backward;
  t.push(std::move(op), {ids, w, pos_w ? positions : Var{}, pos_w}, {y});
  return y;
}

Var gather_rows(Tape& t, Var x, Var ids) {
  const int64_t C = t.shape(x)[-1];
  const Var flat = t.view(x, {t.shape(x).numel() / C, C});
  const Shape si = t.shape(ids);
  const Var y = t.temp({si[0], si[1], C});
  Op op = embed_op();
  op.backward = gather_backward;
  t.push(std::move(op), {ids, flat, {}, {}}, {y});
  return y;
}

}  // namespace hearth
