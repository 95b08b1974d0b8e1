#include <algorithm>

#include "core/math.h"
#include "ops/fp8.h"
#include "ops/ops.h"
#include "ops/record.h"
#include "sys/error.h"

namespace hearth::inline ops {
namespace {

constexpr int64_t tile = 128;  // rows for which matrix units are efficient

int64_t rows_per_chunk(int64_t rows, int64_t row_bytes, int64_t chunk_bytes) {
  const int64_t fit = std::max<int64_t>(64, chunk_bytes / row_bytes);
  const int64_t least = ceil_div(rows, fit);
  // Prefer equal chunks of whole tiles, even if that takes up to twice as many chunks.
  for (int64_t chunks = least; chunks <= 2 * least; ++chunks)
    if (rows % (chunks * tile) == 0) return rows / chunks;
  return ceil_div(rows, least);
}

// The chunks of logits that head_logprob computes; its backward rule reads them or recomputes them.
struct Chunks {
  Var x, w, targets;  // (N, C), (V, C) padded to whole tiles, (N, 1)
  int64_t rows = 0, each = 0;
  float scale = 1;  // of the logits
  LogprobSpec spec = {};
  std::vector<Var> kept = {};  // (n, V) of each chunk; empty: not kept

  template <class F>
  void for_each(Tape& t, F use) const {
    for (int64_t i = 0; i < rows; i += each) {
      const int64_t n = std::min(each, rows - i);
      if (!kept.empty()) {
        use(i, n, t.saved(kept[size_t(i / each)]));
        continue;
      }
      // Not rounded to the weights' dtype: a log-probability is a small difference of large logits.
      const Var logits = t.temp({n, t.shape(w)[0]}, t.acc());
      record_gemm(
          t, {.c = logits, .a = t.rows(x, i, n), .b = w, .spec = {.tb = true, .alpha = scale}});
      use(i, n, logits);
    }
  }
};

void head_logprob_backward(Tape& t, const Node& node, Chunks c) {
  const Var x = node.in[0], w = node.in[1], dlogprob = t.grad(node.out[0]);
  c.x = t.saved(x);
  const bool grad_x = t.needs_grad(x), grad_w = t.needs_grad(w);
  const Var dx = grad_x ? t.temp(t.shape(x)) : Var{};
  c.for_each(t, [&](int64_t i, int64_t n, Var logits) {
    const Var dlogits = t.temp(t.shape(logits));
    const auto launch = [spec = c.spec](auto* f, Stream& s, In in, Out out) {
      f(s, {.dlogits = out[0], .dlogprob = in[0], .logits = in[1], .targets = in[2], .spec = spec});
    };
    Op op = kernel_op<&Kernels::logprob_bwd>("logprob_bwd", launch);
    op.inplace = {{0, 1}};
    t.push(std::move(op), {t.rows(dlogprob, i, n), logits, t.rows(c.targets, i, n)}, {dlogits});
    if (grad_w) {
      const auto [dw, prior] = t.grad_sink(w);
      record_gemm(t, {.c = t.whole_tiles(dw),
                      .a = dlogits,
                      .b = t.rows(c.x, i, n),
                      .prior = prior ? t.whole_tiles(prior) : Var{},
                      .spec = {.ta = true, .alpha = c.scale}});
    }
    if (grad_x)
      record_gemm(t, {.c = t.rows(dx, i, n), .a = dlogits, .b = c.w, .spec = {.alpha = c.scale}});
  });
  if (grad_x) t.add_grad(x, dx);
}

struct CrossEntropyVars {
  Var nll, z, logits, targets;  // of a chunk of rows; z may be absent
  Fp8Copies fp8;                // of the gradient
};

void record_cross_entropy(Tape& t, const CrossEntropyVars& v, const LossSpec& spec) {
  const auto launch = [spec](auto* f, Stream& s, In in, Out out) {
    f(s, {.nll = out[0],
          .z = out[1],
          .logits = in[0],
          .targets = in[1],
          .scalars = in[2],
          .fp8 = fp8_output(in, out),
          .spec = spec});
  };
  const Var dlogits = spec.grad ? t.rows(v.logits, 0, t.shape(v.logits)[0]) : Var{};
  t.push(kernel_op<&Kernels::cross_entropy>("cross_entropy", launch),
         {v.logits, v.targets, scalars(t), v.fp8.site, {}},
         {v.nll, v.z, dlogits, v.fp8.y, v.fp8.yt, v.fp8.sums});
}

}  // namespace

Var mean_loss(Tape& t, Var rows, LossTerm term) {
  const Var value = t.add_loss(std::move(term));
  const auto launch = [add = t.accumulate](auto* f, Stream& s, In in, Out out) {
    f(s, {.loss = out[0], .nll = in[0], .scalars = in[1], .add = add});
  };
  t.push(kernel_op<&Kernels::mean_loss>("mean_loss", launch), {rows, scalars(t)}, {value});
  return value;
}

Var head_loss(Tape& t, Var x, Var w, Var targets, const HeadSpec& spec) {
  const int64_t N = t.shape(targets).numel(), C = t.shape(w)[1], V = t.shape(w)[0];
  if (t.shape(x).numel() != N * C)
    fail(t.where(), "expected {} rows of {} for the head, got {}", N, C, to_string(t.shape(x)));
  if (spec.grad && spec.acc_logits)
    fail(t.where(), "logits in acc have no gradient here: head_logprob has one");
  // Pad the vocabulary to whole tiles: products of an odd width run at a fraction of the speed.
  const Var tiles = t.whole_tiles(w);
  const int64_t wide = t.shape(tiles)[0];
  const DType dtype = spec.acc_logits ? t.acc() : t.dtype();
  const int64_t chunk = spec.chunk_rows
                            ? spec.chunk_rows
                            : rows_per_chunk(N, wide * size_of(dtype), spec.chunk_bytes);
  const std::string prefix = t.losses.empty() ? "" : spec.term.name + ".";
  const Var nll = t.result(prefix + "nll", {N, 1}, t.acc());
  const Var z = spec.z_loss > 0 ? t.temp({N, 1}, t.acc()) : Var{};
  const Var flat_x = t.view(x, {N, C}), flat_targets = t.view(targets, {N, 1});
  const bool grad_x = spec.grad && t.needs_grad(x);
  const bool grad_w = spec.grad && spec.grad_w && t.needs_grad(w);
  const Var dx = grad_x ? t.temp(t.shape(x)) : Var{};
  const Var flat_dx = grad_x ? t.view(dx, {N, C}) : Var{};
  HeadProducts products(t, tiles, {.trains = spec.grad, .scale = spec.scale});
  const LossSpec loss_spec{.vocab = V,
                           .softcap = spec.softcap,
                           .grad = spec.grad && products.read_plain_gradient(),
                           .weight = spec.term.weight,
                           .z_loss = spec.z_loss};

  for (int64_t i = 0; i < N; i += chunk) {
    const int64_t n = std::min(chunk, N - i);
    const Var logits = t.temp({n, wide}, dtype);
    products.logits(t, logits, t.rows(flat_x, i, n));
    record_cross_entropy(t,
                         {.nll = t.rows(nll, i, n),
                          .z = z ? t.rows(z, i, n) : Var{},
                          .logits = logits,
                          .targets = t.rows(flat_targets, i, n),
                          .fp8 = grad_w || grad_x ? products.rounded_gradient(t) : Fp8Copies{}},
                         loss_spec);
    if (grad_w) {
      const auto [dw, prior] = t.grad_sink(w);
      products.weight(t, t.whole_tiles(dw), prior ? t.whole_tiles(prior) : Var{});
    }
    if (grad_x) products.input(t, t.rows(flat_dx, i, n));
  }
  if (grad_x) t.add_grad(x, dx);

  const Var loss = mean_loss(t, nll, spec.term);
  if (z) mean_loss(t, z, {.name = "z_loss", .weight = spec.z_loss});
  return loss;
}

Var head_logprob(Tape& t, Var x, Var w, Var targets, const HeadLogprobSpec& spec) {
  const int64_t N = t.shape(targets).numel(), C = t.shape(w)[1];
  if (t.shape(x).numel() != N * C)
    fail(t.where(), "expected {} rows of {} for the head, got {}", N, C, to_string(t.shape(x)));
  if (!(spec.temperature > 0))
    fail(t.where(), "expected a temperature above 0, got {}", spec.temperature);
  Chunks c{
      .x = t.view(x, {N, C}),
      .w = t.whole_tiles(w),
      .targets = t.view(targets, {N, 1}),
      .rows = N,
      .scale = spec.scale,
      .spec = {.vocab = t.shape(w)[0], .softcap = spec.softcap, .temperature = spec.temperature}};
  c.each = spec.chunk_rows
               ? spec.chunk_rows
               : rows_per_chunk(N, t.shape(c.w)[0] * size_of(t.acc()), spec.chunk_bytes);
  const bool grad = t.needs_grad(c.x) || t.needs_grad(w);
  const bool keep = grad && N * t.shape(c.w)[0] * size_of(t.acc()) <= spec.keep_bytes;
  std::vector<Var> made;
  const Var logprob = t.result("logprob", {N, 1}, t.acc());
  const Var entropy = spec.entropy ? t.result("entropy", {N, 1}, t.acc()) : Var{};
  c.for_each(t, [&](int64_t i, int64_t n, Var logits) {
    const auto launch = [spec = c.spec](auto* f, Stream& s, In in, Out out) {
      f(s, {.logprob = out[0], .entropy = out[1], .logits = in[0], .targets = in[1], .spec = spec});
    };
    t.push(kernel_op<&Kernels::logprob>("logprob", launch), {logits, t.rows(c.targets, i, n)},
           {t.rows(logprob, i, n), entropy ? t.rows(entropy, i, n) : Var{}});
    if (keep) made.push_back(logits);
  });
  c.kept = std::move(made);
  // Launches nothing: this node stands for all chunks when gradients are recorded.
  Op op;
  op.name = "head_logprob";
  op.backward = [c](Tape& t, const Node& n) { head_logprob_backward(t, n, c); };
  const Var flat = c.x;
  t.push(std::move(op), {flat, w}, {logprob});
  t[logprob].needs_grad = grad;
  return logprob;
}

}  // namespace hearth::inline ops
