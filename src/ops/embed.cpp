#include "ops/ops.h"
#include "ops/record.h"
#include "sys/error.h"

namespace hearth::inline ops {
namespace {

void embed_backward(Tape& t, const Node& n) {
  const Var ids = n.in[0], w = n.in[1], positions = n.in[2], pos_w = n.in[3];
  Tape::Sink own, pos;
  if (t.needs_grad(w)) own = t.grad_sink(w);
  if (t.needs_grad(pos_w)) pos = t.grad_sink(pos_w);
  const EmbedSpec spec{.add = bool(own.prior), .add_pos = bool(pos.prior)};
  const auto launch = [spec](auto* f, Stream& s, In in, Out out) {
    f(s, {.dw = out[0],
          .dpos_w = out[1],
          .dy = in[0],
          .ids = in[1],
          .positions = in[2],
          .spec = spec});
  };
  t.push(kernel_op<&Kernels::embed_bwd>("embed_bwd", launch),
         {t.grad(n.out[0]), ids, positions, own.prior, pos.prior}, {own.out, pos.out});
}

Op embed_op() {
  return kernel_op<&Kernels::embed>("embed", [](auto* f, Stream& s, In in, Out out) {
    f(s, {.y = out[0], .ids = in[0], .w = in[1], .positions = in[2], .pos_w = in[3]});
  });
}

void gather_backward(Tape& t, const Node& n) {
  const Var ids = n.in[0], x = n.in[1];
  if (!t.needs_grad(x)) return;
  const auto [dx, prior] = t.grad_sink(x);
  Op op = kernel_op<&Kernels::scatter_rows>("scatter_rows", [](auto* f, Stream& s, In in, Out out) {
    f(s, {.dx = out[0], .dy = in[0], .ids = in[1], .prior = in[2]});
  });
  op.inplace = {{0, 2}};
  t.push(std::move(op), {t.grad(n.out[0]), ids, prior}, {dx});
}

PreviousTokens record_previous(Tape& t, std::vector<Var> in, Var cache, const PreviousSpec& spec) {
  const Shape shape = t.shape(in[0]);
  const auto ids = [&](bool wanted) { return wanted ? t.temp(shape, DType::i32) : Var{}; };
  const PreviousTokens y{ids(spec.before), ids(spec.row), ids(spec.buckets > 0)};
  const auto launch = [buckets = spec.buckets](auto* f, Stream& s, In in, Out out) {
    f(s, {.before = out[0],
          .row = out[1],
          .bigram = out[2],
          .cache = out[3],
          .tokens = in[0],
          .positions = in[1],
          .sequences = in[2],
          .tables = in[3],
          .buckets = buckets});
  };
  t.push(kernel_op<&Kernels::previous_tokens>("previous_tokens", launch), std::move(in),
         {y.before, y.row, y.bigram, cache});
  return y;
}

}  // namespace

Var further_tokens(Tape& t, Var tokens, Var positions, int64_t by) {
  const Var y = t.temp(t.shape(tokens), DType::i32);
  const auto launch = [by](auto* f, Stream& s, In in, Out out) {
    f(s, {.y = out[0], .x = in[0], .positions = in[1], .by = by});
  };
  t.push(kernel_op<&Kernels::further_tokens>("further_tokens", launch), {tokens, positions}, {y});
  return y;
}

PreviousTokens previous_tokens(Tape& t, Var tokens, Var positions, const PreviousSpec& spec) {
  return record_previous(t, {tokens, positions, {}, {}, {}}, {}, spec);
}

PreviousTokens previous_tokens_cached(Tape& t, Var cache, Var tokens, const Paged& paged,
                                      const PreviousSpec& spec) {
  return record_previous(t, {tokens, paged.positions, paged.sequences, paged.tables, cache}, cache,
                         spec);
}

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

Var spread_rows(Tape& t, Var w, Shape shape, const std::string& name,
                std::span<const int32_t> from) {
  const int64_t R = t.shape(w)[0], C = t.shape(w)[1], n = int64_t(from.size());
  if (shape.numel() != n * C)
    fail(t.where(), "expected {} rows of {} in {}", n, C, to_string(shape));
  std::vector<int32_t> back(size_t(R), -1);
  for (size_t i = 0; i < from.size(); ++i)
    if (from[i] >= 0) back[size_t(from[i])] = int32_t(i);
  const Var ids = t.constant(name, {n, 1}, from);
  const Var rows = t.temp({n, C});
  Op op = embed_op();
  op.name = "spread_rows";
  op.backward = [name, back](Tape& t, const Node& n) {  // each row comes from one place: a gather
    const Var d = t.temp(t.shape(n.in[1]), t.acc());
    const Var ids = t.constant(name + ".back", {int64_t(back.size()), 1}, back);
    t.push(embed_op(), {ids, t.grad(n.out[0]), {}, {}}, {d});
    t.add_grad(n.in[1], d);
  };
  t.push(std::move(op), {ids, w, {}, {}}, {rows});
  const Var y = t.view(rows, shape);
  // This is the gradient of a parameter, so it is kept in the same precision as theirs.
  t[rows].grad_dtype = t[y].grad_dtype = t.acc();
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

}  // namespace hearth::inline ops
