#include "ops/mla.h"

#include <fmt/format.h>

#include <numeric>

#include "core/cache_layout.h"
#include "ops/record.h"
#include "sys/error.h"

namespace hearth::inline ops {
namespace {

void expect_width(Tape& t, const char* what, Var x, int64_t width) {
  if (t.shape(x)[-1] != width)
    fail(t.where(), "expected {} of width {}, got {}", what, width, to_string(t.shape(x)));
}

void pack_backward(Tape& t, const Node& n, const LatentSpec& spec) {
  const auto wanted = [&](Var x) { return t.needs_grad(x) ? t.temp(t.shape(x)) : Var{}; };
  const std::vector<Var> grads{wanted(n.in[0]), wanted(n.in[1]), wanted(n.in[2])};
  const auto launch = [spec](auto* f, Stream& s, In in, Out out) {
    f(s, {.dq = out[0], .dkv = out[1], .dk_rope = out[2], .dy = in[0], .spec = spec});
  };
  t.push(kernel_op<&Kernels::unpack_latent>("unpack_latent", launch), {t.grad(n.out[0])}, grads);
  for (size_t i = 0; i < grads.size(); ++i)
    if (grads[i]) t.add_grad(n.in[i], grads[i]);
}

// The tables of expanded keys: sequence s has the blocks s * blocks, s * blocks + 1, ..
Var own_tables(Tape& t, int64_t sequences, int64_t blocks) {
  std::vector<int32_t> all(size_t(sequences * blocks));
  std::iota(all.begin(), all.end(), 0);
  return t.constant(fmt::format("latent.tables.{}x{}", sequences, blocks), {sequences, blocks},
                    std::span<const int32_t>(all));
}

}  // namespace

Var rope_heads(Tape& t, Var x, Var positions, Var rope, const RopeHeadsSpec& spec) {
  expect_width(t, "heads", x, spec.token());
  if (spec.rotary < 2 || spec.rotary % 2 || spec.first + spec.rotary > spec.width)
    fail(t.where(), "expected an even number of rotated dims in heads of {}, got {} from {}",
         spec.width, spec.rotary, spec.first);
  const Var y = t.temp(t.shape(x));
  const auto launch = [](const RopeHeadsSpec& own) {
    return [own](auto* f, Stream& s, In in, Out out) {
      f(s, {.y = out[0], .x = in[0], .positions = in[1], .rope = in[2], .spec = own});
    };
  };
  Op op = kernel_op<&Kernels::rope_heads>("rope_heads", launch(spec));
  op.inplace = {{0, 0}};
  op.backward = [launch, spec](Tape& t, const Node& n) {
    RopeHeadsSpec back = spec;
    back.reverse = !spec.reverse;
    const Var dx = t.temp(t.shape(n.in[0]));
    Op undo = kernel_op<&Kernels::rope_heads>("rope_heads_bwd", launch(back));
    undo.inplace = {{0, 0}};
    t.push(std::move(undo), {t.grad(n.out[0]), n.in[1], n.in[2]}, {dx});
    t.add_grad(n.in[0], dx);
  };
  t.push(std::move(op), {x, positions, rope}, {y});
  return y;
}

Var pack_latent(Tape& t, Var q, Var kv, Var k_rope, const LatentSpec& spec) {
  expect_width(t, "q", q, spec.q_size());
  expect_width(t, "keys and values", kv, spec.kv_size());
  expect_width(t, "a rotated key", k_rope, spec.rope);
  const Var y = t.temp(with_cols(t.shape(q), spec.packed()));
  const auto launch = [spec](auto* f, Stream& s, In in, Out out) {
    f(s, {.y = out[0], .q = in[0], .kv = in[1], .k_rope = in[2], .spec = spec});
  };
  Op op = kernel_op<&Kernels::pack_latent>("pack_latent", launch);
  op.backward = [spec](Tape& t, const Node& n) { pack_backward(t, n, spec); };
  t.push(std::move(op), {q, kv, k_rope}, {y});
  return y;
}

CachedLatents latent_cached(Tape& t, Var cache, Var latent, Var k_rope, const Paged& paged,
                            int64_t sequences, int64_t blocks) {
  const int64_t L = t.shape(latent)[-1], R = t.shape(k_rope)[-1];
  const int64_t rows = sequences * blocks * cache_block;
  if (t.shape(cache)[-1] != cache_block * (L + R) || t.shape(latent)[0] != 1)
    fail(t.where(), "expected rows (1, N, ..) and blocks of {} elements, got {} and {}",
         cache_block * (L + R), to_string(t.shape(latent)), to_string(t.shape(cache)));
  CachedLatents all{.sequences = sequences, .blocks = blocks};
  if (rows) all.latents = t.temp({1, rows, L}), all.rope_keys = t.temp({1, rows, R});
  const auto launch = [=](auto* f, Stream& s, In in, Out out) {
    f(s, {.latents = out[1],
          .rope_keys = out[2],
          .cache = out[0],
          .latent = in[0],
          .k_rope = in[1],
          .positions = in[2],
          .sequences = in[3],
          .tables = in[4],
          .sequences_read = sequences,
          .blocks = blocks});
  };
  t.push(kernel_op<&Kernels::latent_cached>("latent_cached", launch),
         {latent, k_rope, paged.positions, paged.sequences, paged.tables, cache},
         {cache, all.latents, all.rope_keys});
  return all;
}

Var attention_expanded(Tape& t, Var qkv, Var kv, const CachedLatents& all, const Paged& paged,
                       const LatentSpec& spec, const AttnSpec& attn) {
  const QkvLayout at = packed_qkv(spec.heads, spec.heads, spec.qk(), spec.v);
  const CacheLayout layout = cache_layout(at.k, at.v, t.dtype());
  expect_width(t, "q, k and v", qkv, spec.packed());
  expect_width(t, "keys and values", kv, spec.kv_size());
  const Var y = t.temp({1, t.shape(qkv)[1], spec.heads, spec.v});
  const Var panels = t.temp(layout.shape(all.sequences * all.blocks));
  Op op;
  op.name = "attention_expanded";
  op.available = [](const Kernels& k) { return k.latent_panels && k.attention_cached; };
  op.launch = [=](const Kernels& k, Stream& s, In in, Out out) {
    k.latent_panels(s, {.panels = out[1], .kv = in[1], .rope_keys = in[2], .spec = spec});
    k.attention_cached(s, {.y = out[0],
                           .cache = out[1],
                           .q = {in[0], at.q},
                           .k = {in[0], at.k},
                           .v = {in[0], at.v},
                           .positions = in[3],
                           .sequences = in[4],
                           .tables = in[5],
                           .spec = attn});
  };
  t.push(std::move(op),
         {qkv, kv, all.rope_keys, paged.positions, paged.sequences,
          own_tables(t, all.sequences, all.blocks)},
         {y, panels});
  return y;
}

Var attention_latent(Tape& t, Var cache, Var q, Var w, const Paged& paged, const LatentSpec& spec,
                     const AttnSpec& attn) {
  expect_width(t, "q", q, spec.q_size());
  const int64_t L = t.shape(w)[1];
  if (t.shape(cache)[-1] != cache_block * (L + spec.rope) || L > most_absorbed)
    fail(t.where(), "expected blocks of latents of up to {}, got {}", most_absorbed,
         to_string(t.shape(cache)));
  const Var y = t.temp({1, t.shape(q)[1], spec.heads, spec.v});
  const auto launch = [spec, attn, depth = paged.depth](auto* f, Stream& s, In in, Out out) {
    f(s, {.y = out[0],
          .cache = in[0],
          .q = in[1],
          .w = in[2],
          .positions = in[3],
          .sequences = in[4],
          .tables = in[5],
          .spec = spec,
          .attn = attn,
          .depth = depth});
  };
  t.push(kernel_op<&Kernels::attention_latent>("attention_latent", launch),
         {cache, q, w, paged.positions, paged.sequences, paged.tables}, {y});
  return y;
}

}  // namespace hearth::inline ops
