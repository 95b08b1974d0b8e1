// Weighted sums of values, with learned weights.
#include <algorithm>

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

}  // namespace

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

}  // namespace hearth::inline ops
