#include "ops/fp8.h"
#include "ops/ops.h"
#include "ops/record.h"
#include "sys/error.h"

namespace hearth::inline ops {
namespace {

void linear_backward(Tape& t, const Node& n, float scale) {
  const Var x = n.in[0], w = n.in[1], bias = n.in[2], residual = n.in[3];
  const Var dy = product_gradient(t, n);
  if (t.needs_grad(w)) {
    const auto [dw, prior] = t.grad_sink(w);
    record_gemm(
        t,
        {.c = dw, .a = dy, .b = t.saved(x), .prior = prior, .spec = {.ta = true, .alpha = scale}});
  }
  if (t.needs_grad(bias)) record_column_sum(t, bias, dy, scale);
  if (t.needs_grad(x)) {
    if (const Var before = t[x].before) {
      const auto [d, prior] = t.grad_sink(before);
      record_gemm(t, {.c = d,
                      .aux = t.saved(before),
                      .a = dy,
                      .b = t.saved(w),
                      .prior = prior,
                      .spec = {.alpha = scale, .act = t[x].act, .act_slope = true}});
    } else {
      const auto [dx, prior] = t.grad_sink(x);
      record_gemm(t, {.c = dx, .a = dy, .b = t.saved(w), .prior = prior, .spec = {.alpha = scale}});
    }
  }
  if (residual) t.add_grad(residual, dy);
}

// A product with weights (N, K), plain or quantised, as the store has them. A 16-bit output never
// adds in place: a backend may then round the product before it adds, and decoding, where inputs
// die sooner, would differ from training.
Op product_op(const char* name, const GemmSpec& spec, bool trains, DType out) {
  Op op;
  op.name = name;
  if (size_of(out) > 2) op.inplace = {{0, 3}};
  op.available = [](const Kernels& k) { return k.gemm != nullptr; };
  op.launch = [=](const Kernels& k, Stream& s, In in, Out out) {
    if (is_panels(in[1].dtype))
      k.gemm_quantised(
          s, {.c = out[0], .a = in[0], .w = in[1], .bias = in[2], .prior = in[3], .spec = spec});
    else
      k.gemm(s, {.c = out[0],
                 .aux = out[1],
                 .a = in[0],
                 .b = in[1],
                 .bias = in[2],
                 .prior = in[3],
                 .spec = spec});
  };
  op.quantisable = trains ? -1 : 1;  // integer weights have no gradients
  op.gemm = spec;
  return op;
}

// Whether no kernel writes the weight and bias of a product, so that it may read them before the
// preceding kernels finish.
bool known_ahead(const Tape& t, Var weight, Var bias) {
  return t[weight].role == Role::param && (!bias || t[bias].role == Role::param);
}

}  // namespace

Var product_gradient(Tape& t, const Node& n) {
  const Var y = n.out[0], pre = n.out[1], dy = t.grad(y);
  if (!pre) return dy;
  if (dy) {  // from readers that did not fold the slope into their own product
    const Act act = t[y].act;
    const Var d = t.temp(t.shape(pre));
    const auto launch = [act](auto* f, Stream& s, In in, Out out) {
      f(s, {.dx = out[0], .dy = in[0], .x = in[1], .act = act});
    };
    Op op = kernel_op<&Kernels::activation_bwd>("activation_bwd", launch);
    op.inplace = {{0, 0}};
    t.push(std::move(op), {dy, t.saved(pre)}, {d});
    t.add_grad(pre, d);
  }
  return t.grad(pre);
}

void record_gemm(Tape& t, const GemmVars& v) {
  const bool slope = v.spec.act_slope;
  if (v.spec.tb && !v.spec.ta && !slope && !v.aux) {
    GemmSpec own = v.spec;
    own.weight = known_ahead(t, v.b, v.bias);
    Op op = product_op("gemm", own, t.needs_grad(v.b), t[v.c].dtype);
    return t.push(std::move(op), {v.a, v.b, v.bias, v.prior}, {v.c, {}});
  }
  Op op;
  op.name = "gemm";
  op.available = [](const Kernels& k) { return k.gemm != nullptr; };
  static constexpr SumPlaces sums{.out = 2, .in = 5};
  op.launch = [slope, spec = v.spec](const Kernels& k, Stream& s, In in, Out out) {
    const GemmArgs product{.c = out[0],
                           .aux = slope ? in[4] : out[1],
                           .a = in[0],
                           .b = in[1],
                           .bias = in[2],
                           .prior = in[3],
                           .spec = spec};
    launch_summed(k, s, k.gemm, k.gemm_sums, product, column_sums(in, out, sums));
  };
  op.inplace = {{0, 3}};
  if (!v.spec.ta && !v.spec.tb && v.spec.act == Act::none) op.input_gradient = v.spec;
  if (slope) op.sums = sums;
  t.push(std::move(op), {v.a, v.b, v.bias, v.prior, slope ? v.aux : Var{}, {}},
         {v.c, slope ? Var{} : v.aux, {}, {}});
}

void record_column_sum(Tape& t, Var param, Var dy, float scale) {
  const auto [out, prior] = t.grad_sink(param);
  const Var parts = t.temp({row_parts, t.shape(dy)[-1]}, t.acc());
  const auto launch = [scale, add = bool(prior)](auto* f, Stream& s, In in, Out out) {
    f(s, {.out = out[0], .parts = out[1], .x = in[0], .alpha = scale, .add = add});
  };
  Op op = kernel_op<&Kernels::column_sum>("column_sum", launch);
  op.sums_columns = scale == 1;
  t.push(std::move(op), {dy, prior}, {out, parts});
}

Var linear(Tape& t, Var x, Var w, const LinearSpec& spec) {
  const Shape sx = t.shape(x), sw = t.shape(w);
  if (sx[-1] != sw[1])
    fail(t.where(), "expected x of width {} for weights {}, got {}", sw[1], to_string(sw),
         to_string(sx));
  if (spec.act != Act::none && (is_glu(spec.act) || spec.residual || spec.scale != 1))
    fail(t.where(), "expected a plain activation without residual or scale in linear");
  const bool fp8 = t.fp8 && spec.fp8;
  if (fp8 && t.fp8->forward) return linear_fp8(t, x, w, spec);
  const Var y = t.temp(with_cols(sx, sw[0]));
  const bool keeps_pre = spec.act != Act::none && (t.needs_grad(x) || t.needs_grad(w));
  const Var pre = keeps_pre ? t.temp(t.shape(y)) : Var{};
  const GemmSpec gemm_spec{
      .tb = true, .alpha = spec.scale, .act = spec.act, .weight = known_ahead(t, w, spec.bias)};
  Op op = product_op("linear", gemm_spec, t.needs_grad(w), t[y].dtype);
  if (fp8)
    op.backward = linear_gradients_fp8(t, x, w, spec);
  else
    op.backward = [scale = spec.scale](Tape& t, const Node& n) { linear_backward(t, n, scale); };
  t.push(std::move(op), {x, w, spec.bias, spec.residual}, {y, pre});
  if (pre) t[y].before = pre, t[y].act = spec.act;
  return y;
}

}  // namespace hearth::inline ops
