#include <algorithm>

#include "core/error.h"
#include "ops/ops.h"
#include "ops/record.h"

namespace hearth {
namespace {

constexpr int64_t tile = 128;  // rows a matrix unit likes to have together

int64_t rows_per_chunk(int64_t rows, int64_t row_bytes, int64_t chunk_bytes) {
  const int64_t fit = std::max<int64_t>(64, chunk_bytes / row_bytes);
  const int64_t least = (rows + fit - 1) / fit;
  // Chunks of one size, and of whole tiles, where a few more of them can be.
  for (int64_t chunks = least; chunks <= 2 * least; ++chunks)
    if (rows % (chunks * tile) == 0) return rows / chunks;
  return (rows + least - 1) / least;
}

}  // namespace

Var head_loss(Tape& t, Var x, Var w, Var targets, const HeadSpec& spec) {
  const int64_t N = t.shape(targets).numel(), C = t.shape(w)[1], V = t.shape(w)[0];
  if (t.shape(x).numel() != N * C)
    fail(t.where(), "expected {} rows of {} for the head, got {}", N, C, to_string(t.shape(x)));
  // The vocabulary in whole tiles: products of an odd width run at a fraction of the speed.
  const Var tiles = t.whole_tiles(w);
  const int64_t wide = t.shape(tiles)[0];
  const int64_t chunk = spec.chunk_rows
                            ? spec.chunk_rows
                            : rows_per_chunk(N, wide * size_of(t.dtype()), spec.chunk_bytes);
  const Var nll = t.result("nll", {N, 1}, t.acc()), loss = t.result("loss", {1}, t.acc());
  const Var flat_x = t.view(x, {N, C}), flat_targets = t.view(targets, {N, 1});
  const bool grad_x = spec.grad && t.needs_grad(x), grad_w = spec.grad && t.needs_grad(w);
  const Var dx = grad_x ? t.temp(t.shape(x)) : Var{};
  const Var flat_dx = grad_x ? t.view(dx, {N, C}) : Var{};
  const LossSpec loss_spec{.vocab = V, .softcap = spec.softcap, .grad = spec.grad};

  for (int64_t i = 0; i < N; i += chunk) {
    const int64_t n = std::min(chunk, N - i);
    const Var xi = t.rows(flat_x, i, n), logits = t.temp({n, wide});
    record_gemm(t, logits, {}, xi, tiles, {}, {}, {.tb = true});
    const Var dlogits = t.rows(logits, 0, n);
    t.push(kernel_op<&Kernels::cross_entropy>("cross_entropy",
                                              [loss_spec](auto* f, Stream& s, In in, Out out) {
                                                f(s, out[0], in[0], in[1], in[2], loss_spec);
                                              }),
           {logits, t.rows(flat_targets, i, n), scalars(t)}, {t.rows(nll, i, n), dlogits});
    if (grad_w) {
      const auto [dw, prior] = t.grad_sink(w);
      record_gemm(t, t.whole_tiles(dw), {}, dlogits, xi, {}, prior ? t.whole_tiles(prior) : Var{},
                  {.ta = true});
    }
    if (grad_x) record_gemm(t, t.rows(flat_dx, i, n), {}, dlogits, tiles, {}, {}, {});
  }
  if (grad_x) t.add_grad(x, dx);

  t.push(kernel_op<&Kernels::mean_loss>("mean_loss",
                                        [adds = t.accumulate](auto* f, Stream& s, In in, Out out) {
                                          f(s, out[0], in[0], in[1], adds);
                                        }),
         {nll, scalars(t)}, {loss});
  return loss;
}

}  // namespace hearth
