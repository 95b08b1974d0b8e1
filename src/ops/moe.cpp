#include "ops/moe.h"

#include "core/quantised.h"
#include "ops/ops.h"
#include "ops/record.h"
#include "sys/error.h"

namespace hearth::inline ops {
namespace {

// Rows of the last dimension.
Tensor as_matrix(Tensor t) {
  t.shape = {t.rows(), t.cols()};
  return t;
}
// Stacked weights (E * N, K) as (E, N, K); packed ones as they are.
Tensor by_expert(Tensor t, int64_t experts) {
  if (is_panels(t.dtype)) return t;
  t.shape = {experts, t.shape[0] / experts, t.shape[1]};
  return t;
}

struct GroupedVars {
  Var c, a, b, offsets, gather = {};
  bool tb = false;
};
void record_grouped(Tape& t, const GroupedVars& v, Op op = {}, std::vector<Var> more = {}) {
  const int64_t experts = t.shape(v.offsets)[0] - 1;
  const auto launch = [tb = v.tb, experts](auto* f, Stream& s, In in, Out out) {
    f(s, {.c = out[0],
          .a = as_matrix(in[0]),
          .b = by_expert(in[1], experts),
          .offsets = in[2],
          .gather = in[3],
          .tb = tb});
  };
  Op own = kernel_op<&Kernels::grouped_gemm>("grouped_gemm", launch);
  own.backward = std::move(op.backward);
  // Of packed weights every expert has to begin a panel.
  const bool whole_panels = v.tb && t.shape(v.b)[0] / experts % quant_panel == 0;
  if (whole_panels && !t.needs_grad(v.b)) own.quantisable = 1;
  std::vector<Var> in{v.a, v.b, v.offsets, v.gather};
  in.insert(in.end(), more.begin(), more.end());
  t.push(std::move(own), std::move(in), {v.c});
}

struct GroupedWeightVars {
  Var w, dc, a, offsets, gather = {};
};
void record_grouped_weights(Tape& t, const GroupedWeightVars& v) {
  const auto [dw, prior] = t.grad_sink(v.w);
  const int64_t experts = t.shape(v.offsets)[0] - 1;
  const auto launch = [experts, add = bool(prior)](auto* f, Stream& s, In in, Out out) {
    f(s, {.db = by_expert(out[0], experts),
          .dc = as_matrix(in[0]),
          .a = as_matrix(in[1]),
          .offsets = in[2],
          .gather = in[3],
          .add = add});
  };
  t.push(kernel_op<&Kernels::grouped_gemm_weights>("grouped_gemm_weights", launch),
         {v.dc, v.a, v.offsets, v.gather, prior}, {dw});
}

Op combine_op() {
  const auto launch = [](auto* f, Stream& s, In in, Out out) {
    f(s, {.y = out[0], .x = in[0], .place = in[1], .prior = in[2]});
  };
  Op op = kernel_op<&Kernels::combine_rows>("combine_rows", launch);
  op.inplace = {{0, 2}};
  return op;
}

void router_backward(Tape& t, const Node& n) {
  const Var x = n.in[0], w = n.in[1], dlogits = t.grad(n.out[0]);
  if (t.needs_grad(w)) {
    const auto [dw, prior] = t.grad_sink(w);
    record_gemm(t, {.c = dw, .a = dlogits, .b = t.saved(x), .prior = prior, .spec = {.ta = true}});
  }
  if (t.needs_grad(x)) {
    const auto [dx, prior] = t.grad_sink(x);
    record_gemm(t, {.c = dx, .a = dlogits, .b = w, .prior = prior});
  }
}

void route_backward(Tape& t, const Node& n, const Routing& r) {
  const Var logits = n.in[0], dweights = t.grad(n.out[1]);
  const Var dlogits = t.temp(t.shape(logits));
  const auto launch = [spec = r.spec](auto* f, Stream& s, In in, Out out) {
    f(s, {.dlogits = out[0],
          .dweights = in[0],
          .logits = in[1],
          .ids = in[2],
          .offsets = in[3],
          .scalars = in[4],
          .counts = in[5],
          .spec = spec});
  };
  t.push(kernel_op<&Kernels::route_bwd>("route_bwd", launch),
         {dweights, t.saved(logits), t.saved(n.out[0]), t.saved(r.counted), scalars(t), r.counts},
         {dlogits});
  t.add_grad(logits, dlogits);
}

void expert_linear_backward(Tape& t, const Node& n, const Routing& r) {
  const Var x = n.in[0], w = n.in[1], dy = t.grad(n.out[0]);
  if (t.needs_grad(w))
    record_grouped_weights(t, {.w = w,
                               .dc = dy,
                               .a = t.saved(x),
                               .offsets = t.saved(r.offsets),
                               .gather = t.saved(r.tokens)});
  if (!t.needs_grad(x)) return;
  const Var rows = t.temp({t.shape(dy)[0], t.shape(w)[1]});
  record_grouped(t, {.c = rows, .a = dy, .b = w, .offsets = t.saved(r.offsets)});
  const auto [dx, prior] = t.grad_sink(x);
  t.push(combine_op(), {rows, t.saved(r.place), prior}, {dx});
}

void expert_rows_linear_backward(Tape& t, const Node& n, const Routing& r) {
  const Var x = n.in[0], w = n.in[1], dy = t.grad(n.out[0]), offsets = t.saved(r.offsets);
  if (t.needs_grad(w))
    record_grouped_weights(t, {.w = w, .dc = dy, .a = t.saved(x), .offsets = offsets});
  if (!t.needs_grad(x)) return;
  const Var dx = t.temp(t.shape(x));
  record_grouped(t, {.c = dx, .a = dy, .b = w, .offsets = offsets});
  t.add_grad(x, dx);
}

void expert_activation_backward(Tape& t, const Node& n, Act act) {
  const Var x = n.in[0], weights = n.in[1], order = n.in[2];
  const Var dx = t.temp(t.shape(x)), dweights = t.temp(t.shape(weights), t.acc());
  const auto launch = [act](auto* f, Stream& s, In in, Out out) {
    f(s, {.dx = out[0],
          .dweights = out[1],
          .dy = in[0],
          .x = in[1],
          .weights = in[2],
          .order = in[3],
          .act = act});
  };
  t.push(kernel_op<&Kernels::expert_activation_bwd>("expert_activation_bwd", launch),
         {t.grad(n.out[0]), t.saved(x), t.saved(weights), t.saved(order)}, {dx, dweights});
  t.add_grad(x, dx);
  t.add_grad(weights, dweights);
}

// The rows of every token have the gradient of the token. Only the weights need it row by row.
void expert_join_backward(Tape& t, const Node& n, const Routing& r) {
  const Var residual = n.in[2], h = n.in[3], w = n.in[4], dy = t.grad(n.out[0]);
  const Var offsets = t.saved(r.offsets), tokens = t.saved(r.tokens);
  if (t.needs_grad(w)) {
    const Var rows = t.temp({t.shape(h)[0], t.shape(dy)[-1]});
    const auto launch = [](auto* f, Stream& s, In in, Out out) {
      f(s, {.y = out[0], .ids = in[0], .w = as_matrix(in[1])});
    };
    t.push(kernel_op<&Kernels::embed>("gather_rows", launch), {tokens, dy}, {rows});
    record_grouped_weights(t, {.w = w, .dc = rows, .a = t.saved(h), .offsets = offsets});
  }
  if (t.needs_grad(h)) {
    const Var dh = t.temp(t.shape(h));
    record_grouped(t, {.c = dh, .a = dy, .b = w, .offsets = offsets, .gather = tokens});
    t.add_grad(h, dh);
  }
  if (residual) t.add_grad(residual, dy);
}

// Where the values of RouterStatsArgs of a layer go.
struct StatsValues {
  Var values;
  bool add = false;
};
template <class F>
void record_stats(Tape& t, std::span<const Routing> layers, const std::string& name, F values_of) {
  if (layers.empty()) return;
  const Var load = t.state(name, {int64_t(layers.size()), layers[0].experts(t)}, DType::i32);
  for (size_t i = 0; i < layers.size(); ++i) {
    const Routing& r = layers[i];
    const StatsValues to = values_of(i);
    const RouterStatsSpec spec{.kind = r.spec.kind,
                               .k = t.shape(r.ids)[1],
                               .part = 1 / float(layers.size()),
                               .add_values = to.add,
                               .add_load = t.accumulate};
    const auto launch = [spec](auto* f, Stream& s, In in, Out out) {
      f(s, {.values = out[0],
            .load = out[1],
            .parts = out[2],
            .logits = in[0],
            .offsets = in[1],
            .scalars = in[2],
            .counts = in[3],
            .spec = spec});
    };
    t.push(kernel_op<&Kernels::router_stats>("router_stats", launch),
           {r.logits, r.counted, scalars(t), r.counts},
           {to.values, t.rows(load, int64_t(i), 1), t.temp({row_parts, 3}, t.acc())});
  }
}

void expect_stack(const Tape& t, Var w, const Routing& r, int64_t in) {
  if (t.shape(w)[0] % r.experts(t) || t.shape(w)[1] != in)
    fail(t.where(), "expected weights of {} experts for rows of {}, got {}", r.experts(t), in,
         to_string(t.shape(w)));
}

}  // namespace

Var router_logits(Tape& t, Var x, Var w) {
  const int64_t C = t.shape(w)[1], E = t.shape(w)[0];
  const Var logits = t.temp({t.shape(x).numel() / C, E}, t.acc());
  const auto launch = [](auto* f, Stream& s, In in, Out out) {
    f(s, {.c = out[0], .a = in[0], .b = in[1], .spec = {.tb = true}});
  };
  Op op = kernel_op<&Kernels::gemm>("router", launch);
  op.backward = router_backward;
  t.push(std::move(op), {x, w}, {logits});
  t[logits].grad_dtype = t.dtype();
  t.keep(logits);
  return logits;
}

Routing route(Tape& t, Var logits, Var bias, int64_t k, const RouteSpec& spec, Var counts) {
  const int64_t T = t.shape(logits)[0], E = t.shape(logits)[1], R = T * k;
  if (k < 1 || k > E) fail(t.where(), "expected 1 to {} experts per token, got {}", E, k);
  Routing r;
  r.logits = logits, r.spec = spec;
  r.ids = t.temp({T, k}, DType::i32), r.weights = t.temp({T, k}, t.acc());
  r.offsets = t.temp({E + 1}, DType::i32), r.order = t.temp({R}, DType::i32);
  r.tokens = t.temp({R, 1}, DType::i32), r.place = t.temp({T, k}, DType::i32);
  r.counts = counts, r.counted = counts ? t.temp({E + 1}, DType::i32) : r.offsets;
  // A few bytes per token. If they were recomputed with other bits, a token could change experts.
  for (const Var v : {r.ids, r.weights, r.offsets, r.order, r.tokens, r.place, r.counted})
    t.keep(v);
  const auto choose = [spec](auto* f, Stream& s, In in, Out out) {
    f(s, {.ids = out[0], .weights = out[1], .logits = in[0], .bias = in[1], .spec = spec});
  };
  Op op = kernel_op<&Kernels::route>("route", choose);
  op.backward = [r](Tape& t, const Node& n) { route_backward(t, n, r); };
  t.push(std::move(op), {logits, bias}, {r.ids, r.weights});
  const auto sort = [](auto* f, Stream& s, In in, Out out) {
    f(s, {.offsets = out[0],
          .order = out[1],
          .tokens = out[2],
          .place = out[3],
          .ids = in[0],
          .counted = out[4],
          .counts = in[1]});
  };
  t.push(kernel_op<&Kernels::expert_rows>("expert_rows", sort), {r.ids, counts},
         {r.offsets, r.order, r.tokens, r.place, counts ? r.counted : Var{}});
  return r;
}

Var expert_linear(Tape& t, Var x, Var w, const Routing& r) {
  expect_stack(t, w, r, t.shape(x)[-1]);
  const Var y = t.temp({t.shape(r.order)[0], t.shape(w)[0] / r.experts(t)});
  Op op;
  op.backward = [r](Tape& t, const Node& n) { expert_linear_backward(t, n, r); };
  record_grouped(t, {.c = y, .a = x, .b = w, .offsets = r.offsets, .gather = r.tokens, .tb = true},
                 std::move(op), {r.place});
  return y;
}

Var expert_rows_linear(Tape& t, Var x, Var w, const Routing& r) {
  expect_stack(t, w, r, t.shape(x)[-1]);
  const Var y = t.temp({t.shape(x)[0], t.shape(w)[0] / r.experts(t)});
  Op op;
  op.backward = [r](Tape& t, const Node& n) { expert_rows_linear_backward(t, n, r); };
  record_grouped(t, {.c = y, .a = x, .b = w, .offsets = r.offsets, .tb = true}, std::move(op));
  return y;
}

Var expert_activation(Tape& t, Var x, const Routing& r, Act act) {
  const Var y = t.temp({t.shape(x)[0], is_glu(act) ? t.shape(x)[1] / 2 : t.shape(x)[1]});
  const auto launch = [act](auto* f, Stream& s, In in, Out out) {
    f(s, {.y = out[0], .x = in[0], .weights = in[1], .order = in[2], .act = act});
  };
  Op op = kernel_op<&Kernels::expert_activation>("expert_activation", launch);
  op.backward = [act](Tape& t, const Node& n) { expert_activation_backward(t, n, act); };
  t.push(std::move(op), {x, r.weights, r.order}, {y});
  return y;
}

Var expert_join(Tape& t, Var h, Var w, const Routing& r, Var residual, Shape shape) {
  expect_stack(t, w, r, t.shape(h)[-1]);
  const Var rows = t.temp({t.shape(h)[0], shape[-1]}), y = t.temp(shape);
  record_grouped(t, {.c = rows, .a = h, .b = w, .offsets = r.offsets, .tb = true});
  Op op = combine_op();
  op.backward = [r](Tape& t, const Node& n) { expert_join_backward(t, n, r); };
  // h and w are inputs for the sake of their gradients alone.
  const bool learns = t.needs_grad(h) || t.needs_grad(w);
  t.push(std::move(op), {rows, r.place, residual, learns ? h : Var{}, learns ? w : Var{}}, {y});
  return y;
}

void router_losses(Tape& t, std::span<const Routing> layers, const RouterTerms& terms) {
  if (layers.empty()) return;
  const int64_t first = int64_t(t.losses.size());
  t.add_loss({.name = "balance_loss", .weight = terms.balance, .validate = false});
  t.add_loss({.name = "router_z_loss", .weight = terms.z, .validate = false});
  t.add_loss({.name = "router_entropy", .weight = 0, .validate = false});
  record_stats(t, layers, terms.load, [&](size_t i) {
    return StatsValues{t.rows(t.loss_values(), first, 3), t.accumulate || i > 0};
  });
}

void router_loads(Tape& t, std::span<const Routing> layers, const std::string& load) {
  record_stats(t, layers, load, [&](size_t) { return StatsValues{t.temp({3, 1}, t.acc())}; });
}

}  // namespace hearth::inline ops
