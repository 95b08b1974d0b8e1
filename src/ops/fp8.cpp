#include "ops/fp8.h"

#include "core/fp8.h"
#include "ops/record.h"
#include "sys/error.h"

namespace hearth::inline ops {
namespace {

// Sites are numbered in the order of recording, which is the same in every program of a model.
Var next_site(Tape& t, DType format) {
  if (t.fp8->sites == most_fp8_sites)
    fail(t.where(), "expected a model with at most {} tensors rounded to fp8, got more",
         most_fp8_sites);
  t.fp8->formats.push_back(format);
  return t.rows(fp8_sites(t), t.fp8->sites++, 1);
}

struct RoundSpec {
  DType format = DType::e4m3;
  Var site;
  bool transposed = false;
  bool sums = false;
  bool current = false;  // the scale always comes from the value itself
};

// Lets the op that computes v write the copies, if it can and does not write others yet.
bool rounded_by_producer(Tape& t, Var v, const Fp8Copies& to, Var scalars) {
  if (t[v].producer < 0 || t[v].storage != v.id) return false;
  Node& n = t.nodes[size_t(t[v].producer)];
  if (!n.op->fp8_result || n.out[0] != v || n.in[n.in.size() - 2]) return false;
  n.in[n.in.size() - 2] = to.site;
  n.in[n.in.size() - 1] = scalars;
  size_t at = n.out.size() - 3;
  for (const Var copy : {to.y, to.yt, to.sums}) {
    n.out[at++] = copy;
    if (copy) t[copy].producer = t[v].producer;
  }
  return true;
}

// What the rounding of a value reads.
Fp8Recording::Source source_of(const Tape& t, Var v) {
  const auto known = t.fp8->sources.find(v.id);
  return known != t.fp8->sources.end() ? known->second : Fp8Recording::Source{.x = v};
}

// The scalars that a rounding needs if its scale may come from the previous step.
Var scale_scalars(Tape& t, bool current) { return current || t.fp8->measured ? Var{} : scalars(t); }

void record_quantise(Tape& t, const Fp8Recording::Source& from, const Fp8Copies& to, Var numbers) {
  const auto launch = [spec = from.spec](auto* f, Stream& s, In in, Out out) {
    f(s, {.to = fp8_output(in, out), .x = in[0], .aux = in[1], .spec = spec});
  };
  Op op = kernel_op<&Kernels::quantise_fp8>("quantise_fp8", launch);
  op.fp8_result = true;  // of a value that it does not write otherwise
  t.push(std::move(op), {from.x, from.aux, to.site, numbers}, {{}, to.y, to.yt, to.sums});
}

// Records the rounding of v into y and what the spec asks for.
Fp8Copies record_rounding(Tape& t, Var v, const Fp8Copies& to, bool current) {
  const Var numbers = scale_scalars(t, current);
  if (!rounded_by_producer(t, v, to, numbers)) record_quantise(t, source_of(t, v), to, numbers);
  return to;
}

Shape transposed_shape(const Shape& s) {
  const int64_t rows = s.numel() / s[-1];
  return {s[-1], round_up(rows, 16)};
}

Fp8Copies rounded(Tape& t, Var v, const RoundSpec& spec) {
  const Shape s = t.shape(v);
  Fp8Copies to{.y = t.temp(s, spec.format), .yt = {}, .sums = {}, .site = spec.site};
  if (spec.transposed) to.yt = t.temp(transposed_shape(s), spec.format);
  if (spec.sums) to.sums = t.temp({ceil_div(s.numel() / s[-1], fp8_sum_rows), s[-1]}, t.acc());
  return record_rounding(t, v, to, spec.current);
}

// An input of linear layers, rounded once for all of them.
Fp8Copies rounded_input(Tape& t, Var x) {
  if (const auto known = t.fp8->copies.find(x.id); known != t.fp8->copies.end())
    return known->second;
  const Var site = next_site(t, DType::e4m3);
  const Fp8Copies c = rounded(t, x, {.site = site, .transposed = t.fp8->wgrad});
  t.fp8->copies.emplace(x.id, c);
  return c;
}

// The transposed copy of an input, recorded in the backward pass. A kernel of its own makes it: the
// op that computes x belongs to a forward pass that must not change.
Fp8Copies rounded_later(Tape& t, Var x, Var site) {
  if (const auto known = t.fp8->copies.find(x.id); known != t.fp8->copies.end())
    return known->second;
  Fp8Recording::Source from = source_of(t, x);
  from.x = t.saved(from.x);
  const Fp8Copies c{
      .y = {}, .yt = t.temp(transposed_shape(t.shape(x)), DType::e4m3), .sums = {}, .site = site};
  record_quantise(t, from, c, scale_scalars(t, false));
  t.fp8->copies.emplace(x.id, c);
  return c;
}

// The copies of a weight are states: the first micro-batch of a step writes them, all read them.
Fp8Copies rounded_weight(Tape& t, Var w) {
  if (const auto known = t.fp8->copies.find(w.id); known != t.fp8->copies.end())
    return known->second;
  const std::string name = t.values[size_t(t[w].storage)].name;  // a copy: states are values too
  const Fp8Copies c{.y = t.fp8->forward ? t.state("fp8." + name, t.shape(w), DType::e4m3) : Var{},
                    .yt = t.state("fp8t." + name, transposed_shape(t.shape(w)), DType::e4m3),
                    .sums = {},
                    .site = next_site(t, DType::e4m3)};
  if (!t.accumulate) record_rounding(t, w, c, true);
  t.fp8->copies.emplace(w.id, c);
  return c;
}

struct Fp8Product {
  Var c;
  Var a, a_site;  // (M, K)
  Var b, b_site;  // (N, K)
  Var bias = {}, prior = {};
  float alpha = 1;
  bool fast_sums = false;
};

Op fp8_product_op(const char* name, const Tape& t, const Fp8Product& p) {
  const GemmSpec spec{.tb = true, .alpha = p.alpha, .fast_sums = p.fast_sums};
  const auto launch = [spec](auto* f, Stream& s, In in, Out out) {
    f(s, {.c = out[0],
          .a = in[0],
          .b = in[1],
          .bias = in[2],
          .prior = in[3],
          .a_scale = in[4],
          .b_scale = in[5],
          .spec = spec});
  };
  Op op = kernel_op<&Kernels::gemm>(name, launch);
  if (size_of(t[p.c].dtype) > 2) op.inplace = {{0, 3}};  // see product_op() of linear.cpp
  return op;
}

void record(Tape& t, Op op, const Fp8Product& p) {
  t.push(std::move(op), {p.a, p.b, p.bias, p.prior, p.a_site, p.b_site}, {p.c});
}
void record_product(Tape& t, const Fp8Product& p) {
  record(t, fp8_product_op("gemm_fp8", t, p), p);
}

struct LinearVars {
  Var x, w, bias, residual;
  Fp8Copies rounded_x;  // only the site if the forward product is not in fp8
  Fp8Copies rounded_w;
  Var dy_site;
  float scale = 1;
};

// The gradient of `before`, where x = act(before): dh * act'(before). The rounding of that gradient
// computes it from dh, so that this node is pruned unless another node reads its result.
void record_slope(Tape& t, Var x, Var dh) {
  const Var before = t[x].before;
  const Act act = t[x].act;
  const auto [d, prior] = t.grad_sink(before);
  const Var own = prior ? t.temp(t.shape(before)) : d;
  const Var aux = t.saved(before);
  const auto slope = [act](auto* f, Stream& s, In in, Out out) {
    f(s, {.dx = out[0], .dy = in[0], .x = in[1], .act = act});
  };
  t.push(kernel_op<&Kernels::activation_bwd>("activation_bwd", slope), {dh, aux}, {own});
  if (!prior) {
    t.fp8->sources[d.id] = {dh, aux, {.act = act, .act_slope = true}};
    return;
  }
  const auto sum = [](auto* f, Stream& s, In in, Out out) {
    f(s, {.y = out[0], .a = in[0], .b = in[1], .scale = 1});
  };
  t.push(kernel_op<&Kernels::add>("add_grad", sum), {prior, own}, {d});
}

// dy: the gradient of the product itself, before an activation.
void linear_fp8_backward(Tape& t, Var dy, const LinearVars& l) {
  const bool grad_w = t.needs_grad(l.w), fp8_w = grad_w && t.fp8->wgrad;
  const Fp8Copies d = rounded(t, dy,
                              {.format = DType::e5m2,
                               .site = l.dy_site,
                               .transposed = fp8_w,
                               .sums = t.needs_grad(l.bias)});
  if (grad_w) {
    const auto [dw, prior] = t.grad_sink(l.w);
    if (fp8_w) {
      const Fp8Copies x = l.rounded_x.yt ? l.rounded_x : rounded_later(t, l.x, l.rounded_x.site);
      record_product(t, {.c = dw,
                         .a = d.yt,
                         .a_site = d.site,
                         .b = t.saved(x.yt),
                         .b_site = x.site,
                         .prior = prior,
                         .alpha = l.scale});
    } else {
      record_gemm(t, {.c = dw,
                      .a = dy,
                      .b = t.saved(l.x),
                      .prior = prior,
                      .spec = {.ta = true, .alpha = l.scale}});
    }
  }
  if (t.needs_grad(l.bias)) record_column_sum(t, l.bias, d.sums, l.scale);
  if (t.needs_grad(l.x)) {
    Fp8Product p{.c = {},
                 .a = d.y,
                 .a_site = d.site,
                 .b = l.rounded_w.yt,
                 .b_site = l.rounded_w.site,
                 .alpha = l.scale};
    if (t[l.x].before) {
      p.c = t.temp(t.shape(l.x));
      record_product(t, p);
      record_slope(t, l.x, p.c);
    } else {
      const auto [dx, prior] = t.grad_sink(l.x);
      p.c = dx, p.prior = prior;
      record_product(t, p);
    }
  }
  if (l.residual) t.add_grad(l.residual, dy);
}

void expect_width(const Tape& t, Var w) {
  const Shape& s = t.shape(w);
  if (s[0] % 16 || s[1] % 16)
    fail(t.where(), "expected widths that are multiples of 16 for fp8 products, got weights {}",
         to_string(s));
}

}  // namespace

Var fp8_sites(Tape& t) {
  return t.state("fp8.sites", {most_fp8_sites, int64_t(sizeof(Fp8Site))}, DType::u8);
}

void advance_fp8_sites(Tape& t) {
  const Var sites = fp8_sites(t);
  const auto launch = [](auto* f, Stream& s, In, Out out) { f(s, {.sites = out[0]}); };
  t.push(kernel_op<&Kernels::advance_fp8>("advance_fp8", launch), {sites}, {sites});
}

Var linear_fp8(Tape& t, Var x, Var w, const LinearSpec& spec) {
  expect_width(t, w);
  const Fp8Copies rounded_x = rounded_input(t, x), rounded_w = rounded_weight(t, w);
  const LinearVars l{
      x, w, spec.bias, spec.residual, rounded_x, rounded_w, next_site(t, DType::e5m2), spec.scale};
  const Var y = t.temp(with_cols(t.shape(x), t.shape(w)[0]));
  const Fp8Product p{.c = y,
                     .a = rounded_x.y,
                     .a_site = rounded_x.site,
                     .b = rounded_w.y,
                     .b_site = rounded_w.site,
                     .bias = spec.bias,
                     .prior = spec.residual,
                     .alpha = spec.scale,
                     .fast_sums = true};
  Op op = fp8_product_op("linear_fp8", t, p);
  op.backward = [l](Tape& t, const Node& n) { linear_fp8_backward(t, t.grad(n.out[0]), l); };
  record(t, std::move(op), p);
  // The node does not read x itself.
  t[y].needs_grad =
      t.needs_grad(x) || t.needs_grad(w) || t.needs_grad(spec.bias) || t.needs_grad(spec.residual);
  if (spec.act == Act::none) return y;
  const Var z = activation(t, y, spec.act);
  t[z].before = y, t[z].act = spec.act;
  return z;
}

std::function<void(Tape&, const Node&)> linear_gradients_fp8(Tape& t, Var x, Var w,
                                                             const LinearSpec& spec) {
  expect_width(t, w);
  const Fp8Copies later{.y = {}, .yt = {}, .sums = {}, .site = next_site(t, DType::e4m3)};
  const Fp8Copies rounded_w = rounded_weight(t, w);
  const LinearVars l{
      x, w, spec.bias, spec.residual, later, rounded_w, next_site(t, DType::e5m2), spec.scale};
  return [l](Tape& t, const Node& n) {
    if (const Var dy = product_gradient(t, n)) linear_fp8_backward(t, dy, l);
  };
}

HeadProducts::HeadProducts(Tape& t, Var w, const Spec& spec)
    : w_(w), fp8_(spec.trains && t.fp8 && t.fp8->head && t.fp8->forward), scale_(spec.scale) {
  if (!fp8_) return;
  if (t.shape(w)[0] % 16 || t.shape(w)[1] % 16)
    fail(t.where(), "expected widths that are multiples of 16 for fp8 products, got a head of {}",
         to_string(t.shape(w)));
  fp8_wgrad_ = t.fp8->wgrad;
  rounded_w_ = rounded_weight(t, w);
  x_site_ = next_site(t, DType::e4m3), d_site_ = next_site(t, DType::e5m2);
}

void HeadProducts::logits(Tape& t, Var logits, Var x) {
  x_ = x, dlogits_ = logits;
  if (!fp8_)
    return record_gemm(t, {.c = logits, .a = x, .b = w_, .spec = {.tb = true, .alpha = scale_}});
  rounded_x_ = rounded(t, x, {.site = x_site_, .transposed = fp8_wgrad_});
  record_product(t, {.c = logits,
                     .a = rounded_x_.y,
                     .a_site = x_site_,
                     .b = rounded_w_.y,
                     .b_site = rounded_w_.site,
                     .alpha = scale_,
                     .fast_sums = true});
}

Fp8Copies HeadProducts::rounded_gradient(Tape& t) {
  if (!fp8_) return {};
  const Shape s = t.shape(dlogits_);
  rounded_d_ = {.y = t.temp(s, DType::e5m2), .yt = {}, .sums = {}, .site = d_site_};
  if (fp8_wgrad_) rounded_d_.yt = t.temp(transposed_shape(s), DType::e5m2);
  return rounded_d_;
}

void HeadProducts::weight(Tape& t, Var dw, Var prior) {
  if (!fp8_wgrad_)
    return record_gemm(
        t,
        {.c = dw, .a = dlogits_, .b = x_, .prior = prior, .spec = {.ta = true, .alpha = scale_}});
  record_product(t, {.c = dw,
                     .a = rounded_d_.yt,
                     .a_site = d_site_,
                     .b = rounded_x_.yt,
                     .b_site = x_site_,
                     .prior = prior,
                     .alpha = scale_});
}

void HeadProducts::input(Tape& t, Var dx) {
  if (!fp8_) return record_gemm(t, {.c = dx, .a = dlogits_, .b = w_, .spec = {.alpha = scale_}});
  record_product(t, {.c = dx,
                     .a = rounded_d_.y,
                     .a_site = d_site_,
                     .b = rounded_w_.yt,
                     .b_site = rounded_w_.site,
                     .alpha = scale_});
}

}  // namespace hearth::inline ops
