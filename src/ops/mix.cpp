// Weighted sums of values, with learned weights.
#include <algorithm>
#include <numeric>

#include "ops/ops.h"
#include "sys/error.h"

namespace hearth::inline ops {
namespace {

constexpr size_t most = most_mixed;

// The nodes of this file list their operands in fixed places, so that absent ones keep theirs.
// Inputs of a backward node: dy, the weights, the terms, the priors of the terms' gradients and
// those of the weights' gradients. Outputs: the gradients of the terms and weights, and scratch.
struct MixGradient {
  std::vector<Var> in = std::vector<Var>(1 + 4 * most), out = std::vector<Var>(2 * most + 1);
  MixSpec spec;

  static constexpr size_t weight = 1, term = 1 + most, prior = 1 + 2 * most;
  static constexpr size_t weight_prior = 1 + 3 * most, dweight = most, parts = 2 * most;

  MixGradient(Tape& t, Var dy, std::span<const Var> weights, const MixSpec& s) : spec(s) {
    in[0] = dy;
    std::ranges::copy(weights, in.begin() + weight);
    for (size_t i = 0; i < weights.size(); ++i) {
      if (!t.needs_grad(weights[i])) continue;
      const auto [dw, before] = t.grad_sink(weights[i]);
      out[dweight + i] = dw, in[weight_prior + i] = before;
      spec.add[i] = bool(before);
      if (!out[parts]) out[parts] = t.temp({row_parts, most_mixed}, t.acc());
    }
  }
  // Term i is x, whose gradient goes to `dx`. Its values are needed for the weight's gradient only.
  void add_term(Tape& t, size_t i, Var x, Tape::Sink dx) {
    out[i] = dx.out, in[prior + i] = dx.prior;
    if (out[dweight + i]) in[term + i] = t.saved(x);
  }

  static MixBwdArgs args(In in, Out out, const MixSpec& spec) {
    return {.dx = {out[0], out[1], out[2]},
            .dw = {out[dweight], out[dweight + 1], out[dweight + 2]},
            .parts = out[parts],
            .dy = in[0],
            .x = {in[term], in[term + 1], in[term + 2]},
            .w = {in[weight], in[weight + 1], in[weight + 2]},
            .prior = {in[prior], in[prior + 1], in[prior + 2]},
            .spec = spec};
  }
};

void check_terms(Tape& t, std::span<const Weighted> terms) {
  if (terms.size() < 2 || terms.size() > most)
    fail(t.where(), "expected 2 to {} values to mix, got {}", most, terms.size());
  for (size_t i = 0; i < terms.size(); ++i) {
    if (t.shape(terms[i].x) != t.shape(terms[0].x))
      fail(t.where(), "expected values of {} to mix, got {}", to_string(t.shape(terms[0].x)),
           to_string(t.shape(terms[i].x)));
    for (size_t k = 0; k < i; ++k)  // the gradient of a value would be written twice by one kernel
      if (terms[k].x == terms[i].x) fail(t.where(), "expected different values to mix");
  }
}

void mix_backward(Tape& t, const Node& n, const MixSpec& spec) {
  MixGradient g(t, t.grad(n.out[0]), std::span(n.in).first(most), spec);
  for (size_t i = 0; i < most; ++i)
    if (const Var x = n.in[most + i])
      g.add_term(t, i, x, t.needs_grad(x) ? t.grad_sink(x) : Tape::Sink{});
  const auto launch = [spec = g.spec](auto* f, Stream& s, In in, Out out) {
    f(s, MixGradient::args(in, out, spec));
  };
  Op op = kernel_op<&Kernels::mix_bwd>("mix_bwd", launch);
  for (int i = 0; i < most_mixed; ++i) op.inplace.push_back({i, int(MixGradient::prior) + i});
  op.inplace.push_back({0, 0});
  t.push(std::move(op), std::move(g.in), std::move(g.out));
}

// A gradient that only some columns of dy are mixed into: the others are copied.
void mix_values_backward(Tape& t, const Node& n, const MixSpec& spec) {
  MixGradient g(t, t.grad(n.out[0]), std::span(n.in).first(most), spec);
  const Var dqkv = t.temp(t.shape(n.in[most]));
  g.add_term(t, 0, n.in[most + 1], {dqkv, {}});
  for (size_t i = 1; i < most; ++i)
    if (const Var x = n.in[most + 1 + i])
      g.add_term(t, i, x, t.needs_grad(x) ? t.grad_sink(x) : Tape::Sink{});
  Op op;
  op.name = "mix_values_bwd";
  op.available = [](const Kernels& k) { return k.mix_bwd && k.copy; };
  op.launch = [spec = g.spec](const Kernels& k, Stream& s, In in, Out out) {
    if (out[0].data != in[0].data) k.copy(s, {.y = out[0], .x = in[0]});
    k.mix_bwd(s, MixGradient::args(in, out, spec));
  };
  op.inplace = {{0, 0}};
  for (int i = 1; i < most_mixed; ++i) op.inplace.push_back({i, int(MixGradient::prior) + i});
  t.push(std::move(op), std::move(g.in), std::move(g.out));
  t.add_grad(n.in[most], dqkv);
}

void columns_backward(Tape& t, const Node& n, const MixSpec& spec) {
  const auto [dx, prior] = t.grad_sink(n.in[0]);
  if (!prior) fail(t.where(), "expected a later reader of the value that columns() reads");
  const MixSpec back{.width = spec.width, .y = spec.x[0], .x = {spec.x[0], spec.y}};
  Op op;
  op.name = "columns_bwd";
  op.available = [](const Kernels& k) { return k.mix && k.copy; };
  op.launch = [back](const Kernels& k, Stream& s, In in, Out out) {
    if (out[0].data != in[0].data) k.copy(s, {.y = out[0], .x = in[0]});
    k.mix(s, {.y = out[0], .x = {in[0], in[1], {}}, .w = {}, .spec = back});
  };
  op.inplace = {{0, 0}};
  t.push(std::move(op), {prior, t.grad(n.out[0])}, {dx});
}

// Copies of columns between a whole and its consecutive parts.
struct Parts {
  std::vector<int64_t> widths;

  int64_t row() const { return std::reduce(widths.begin(), widths.end()); }
  Op op(const char* name, bool splits) const {
    Op op;
    op.name = name;
    op.available = [](const Kernels& k) { return k.mix != nullptr; };
    op.launch = [*this, splits](const Kernels& k, Stream& s, In in, Out out) {
      int64_t begin = 0;
      for (size_t i = 0; i < widths.size(); begin += widths[i++]) {
        const Columns whole{begin, row()}, part{0, widths[i]};
        const MixSpec spec{
            .width = widths[i], .y = splits ? part : whole, .x = {splits ? whole : part}};
        const Tensor& y = splits ? out[i] : out[0];
        if (y) k.mix(s, {.y = y, .x = {splits ? in[0] : in[i], {}, {}}, .w = {}, .spec = spec});
      }
    };
    return op;
  }
};

void split_backward(Tape& t, const Node& n, const Parts& parts) {
  std::vector<Var> grads;
  for (const Var part : n.out) {
    grads.push_back(t.grad(part));
    if (!grads.back()) fail(t.where(), "expected a reader of every part of the columns");
  }
  const Var dx = t.temp(t.shape(n.in[0]));
  t.push(parts.op("split_columns_bwd", false), std::move(grads), {dx});
  t.add_grad(n.in[0], dx);
}

void join_backward(Tape& t, const Node& n, const Parts& parts) {
  std::vector<Var> grads;
  for (const Var part : n.in) grads.push_back(t.needs_grad(part) ? t.temp(t.shape(part)) : Var{});
  t.push(parts.op("join_columns_bwd", true), {t.grad(n.out[0])}, grads);
  for (size_t i = 0; i < grads.size(); ++i)
    if (grads[i]) t.add_grad(n.in[i], grads[i]);
}

Shape with_width(Shape s, int64_t width) {
  s.dim[size_t(s.rank - 1)] = width;
  return s;
}

}  // namespace

std::vector<Var> split_columns(Tape& t, Var x, std::span<const int64_t> widths) {
  const Parts parts{{widths.begin(), widths.end()}};
  const Shape shape = t.shape(x);
  if (parts.row() != shape[-1])
    fail(t.where(), "expected parts of {} columns together, got {}", shape[-1], parts.row());
  std::vector<Var> out;
  for (const int64_t width : widths) out.push_back(t.temp(with_width(shape, width)));
  Op op = parts.op("split_columns", true);
  op.backward = [parts](Tape& t, const Node& n) { split_backward(t, n, parts); };
  t.push(std::move(op), {x}, out);
  return out;
}

Var join_columns(Tape& t, std::span<const Var> all) {
  Parts parts;
  for (const Var x : all) parts.widths.push_back(t.shape(x)[-1]);
  const Var y = t.temp(with_width(t.shape(all[0]), parts.row()));
  Op op = parts.op("join_columns", false);
  op.backward = [parts](Tape& t, const Node& n) { join_backward(t, n, parts); };
  t.push(std::move(op), {all.begin(), all.end()}, {y});
  return y;
}

Var mix(Tape& t, std::span<const Weighted> terms) {
  check_terms(t, terms);
  const Shape shape = t.shape(terms[0].x);
  MixSpec spec{.width = shape[-1], .y = {0, shape[-1]}};
  std::vector<Var> in(2 * most);  // weights, then terms
  for (size_t i = 0; i < terms.size(); ++i) {
    in[i] = terms[i].weight, in[most + i] = terms[i].x;
    spec.x[i] = spec.y;
  }
  const auto launch = [spec](auto* f, Stream& s, In in, Out out) {
    f(s, {.y = out[0],
          .x = {in[most], in[most + 1], in[most + 2]},
          .w = {in[0], in[1], in[2]},
          .spec = spec});
  };
  Op op = kernel_op<&Kernels::mix>("mix", launch);
  for (int i = 0; i < most_mixed; ++i) op.inplace.push_back({0, most_mixed + i});
  op.backward = [spec](Tape& t, const Node& n) { mix_backward(t, n, spec); };
  const Var y = t.temp(shape);
  t.push(std::move(op), std::move(in), {y});
  return y;
}

Var columns(Tape& t, Var x, int64_t begin, int64_t width) {
  Shape shape = t.shape(x);
  const int64_t row = shape[-1];
  if (begin < 0 || width < 1 || begin + width > row)
    fail(t.where(), "expected columns of {}, got {} from {}", row, width, begin);
  shape.dim[size_t(shape.rank - 1)] = width;
  const MixSpec spec{.width = width, .y = {0, width}, .x = {{begin, row}}};
  Op op = kernel_op<&Kernels::mix>("columns", [spec](auto* f, Stream& s, In in, Out out) {
    f(s, {.y = out[0], .x = {in[0], {}, {}}, .w = {}, .spec = spec});
  });
  op.backward = [spec](Tape& t, const Node& n) { columns_backward(t, n, spec); };
  const Var y = t.temp(shape);
  t.push(std::move(op), {x}, {y});
  return y;
}

Var mix_values(Tape& t, Var qkv, Var unturned, Var own, std::span<const Weighted> others,
               const HeadLayout& v) {
  const int64_t size = v.heads * v.width, tokens = t.shape(qkv).numel() / v.token;
  if (others.empty() || others.size() >= most)
    fail(t.where(), "expected 1 to {} values to mix with v, got {}", most - 1, others.size());
  MixSpec spec{.width = size, .y = {v.offset, v.token}, .x = {{v.offset, v.token}}};
  std::vector<Var> in(2 * most + 1);  // weights, qkv, terms
  in[0] = own, in[most] = qkv, in[most + 1] = unturned;
  for (size_t i = 0; i < others.size(); ++i) {
    const Var x = others[i].x;
    if (t.shape(x).numel() != tokens * size || (i > 0 && x == others[0].x))
      fail(t.where(), "expected different values of {} rows of {} to mix with v, got {}", tokens,
           size, to_string(t.shape(x)));
    in[1 + i] = others[i].weight, in[most + 2 + i] = x;
    spec.x[1 + i] = {0, size};
  }
  Op op;
  op.name = "mix_values";
  op.available = [](const Kernels& k) { return k.mix && k.copy; };
  op.launch = [spec](const Kernels& k, Stream& s, In in, Out out) {
    if (out[0].data != in[most].data) k.copy(s, {.y = out[0], .x = in[most]});
    k.mix(s, {.y = out[0],
              .x = {in[most + 1], in[most + 2], in[most + 3]},
              .w = {in[0], in[1], in[2]},
              .spec = spec});
  };
  op.inplace = {{0, most_mixed}};
  op.backward = [spec](Tape& t, const Node& n) { mix_values_backward(t, n, spec); };
  const Var y = t.temp(t.shape(qkv));
  t.push(std::move(op), std::move(in), {y});
  return y;
}

}  // namespace hearth::inline ops
