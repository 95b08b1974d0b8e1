// Latent attention (MLA). Training, and decoding with the bits of training, compute the keys and
// values of all heads from the latents; otherwise decoding attends over the latents themselves.
#include "model/block_builder.h"
#include "ops/mla.h"

namespace hearth::inline model {

Var BlockBuilder::latent_norm(const char* name, Var x) const {
  const auto scope = t.scope(name);
  const Var gain = param("gain", {t.shape(x)[-1]}, Init::ones(), Group::vector);
  const Var y = norm(t, x, {}, gain, {}, {.kind = Norm::rms, .eps = latent_norm_eps}).y;
  drop_light(y);
  return y;
}

Var BlockBuilder::latent_query(Var x, const LayerSpec& l) const {
  const std::vector<HeadRows> heads{{l.heads, l.qk_dim}};
  if (!l.q_latent) {
    const auto scope = t.scope("q");
    return product(x, of_heads(heads, c.dim), {});
  }
  {
    const auto scope = t.scope("q_a");
    const Var w = weight(l.q_latent, c.dim);
    x = product(x, w, {.bias = bias(c.qkv_bias, l.q_latent)});
  }
  x = latent_norm("q_a_norm", x);
  const auto scope = t.scope("q_b");
  return product(x, of_heads(heads, l.q_latent), {});
}

// The part of a head's key without position lies above its value.
Var BlockBuilder::kv_weight(const LayerSpec& l) const {
  const LatentSpec spec = l.latent();
  std::vector<HeadRows> heads;
  for (int64_t h = 0; h < spec.heads; ++h) heads.insert(heads.end(), {{1, spec.nope}, {1, spec.v}});
  return of_heads(std::move(heads), l.kv_latent);
}

Var BlockBuilder::keys_and_values(Var latent, const LayerSpec& l) const {
  const auto scope = t.scope("kv_b");
  return product(latent, kv_weight(l), {});
}

// The rotated dims are the last ones of each head.
Var BlockBuilder::rotated(Var x, const LayerSpec& l, int64_t heads) const {
  if (!l.rope) return x;
  const int64_t width = t.shape(x)[-1] / heads;
  return rope_heads(t, x, inputs.positions, l.rope_local ? local_rope : rope,
                    {.heads = heads,
                     .width = width,
                     .first = width - l.rope_dim,
                     .rotary = l.rope_dim,
                     .interleaved = c.rope_pairs == RopePairs::interleaved,
                     .reverse = c.rope_reverse});
}

Var BlockBuilder::attend_cached_latents(Var q, Var latent, Var k_rope, int64_t layer) const {
  const LayerSpec& l = layers[size_t(layer)];
  const Var blocks = cache(layer);
  if (mode.absorb) {
    latent_cached(t, blocks, latent, k_rope, paged(), 0, 0);
    const auto scope = t.scope("kv_b");
    return attention_latent(t, blocks, q, kv_weight(l), paged(), l.latent(), scores_of(l));
  }
  const Shape tables = t.shape(inputs.tables);
  const CachedLatents all = latent_cached(t, blocks, latent, k_rope, paged(),
                                          mode.latent_sequences ? mode.latent_sequences : tables[0],
                                          mode.latent_blocks ? mode.latent_blocks : tables[1]);
  const Var qkv = pack_latent(t, q, keys_and_values(latent, l), k_rope, l.latent());
  return attention_expanded(t, qkv, keys_and_values(all.latents, l), all, paged(), l.latent(),
                            scores_of(l));
}

Var BlockBuilder::attend_latent(Var x, int64_t layer, Join join) const {
  const LayerSpec& l = layers[size_t(layer)];
  const int64_t B = t.shape(x)[0], T = t.shape(x)[1];
  const bool gates = c.output_gate != OutputGate::none;
  const Var gate_x = gates && c.gate_inputs ? columns(t, x, 0, c.gate_inputs) : x;
  const Var q = rotated(latent_query(x, l), l, l.heads);
  Var compressed;
  {
    const auto scope = t.scope("kv_a");
    const int64_t widths[] = {l.kv_latent, l.rope_dim};
    const Var w = stacked({widths[0], widths[1]}, c.dim);
    compressed = product(x, w, {.bias = bias(c.qkv_bias, widths[0] + widths[1])});
  }
  const int64_t widths[] = {l.kv_latent, l.rope_dim};
  const std::vector<Var> parts = split_columns(t, compressed, widths);
  const Var latent = latent_norm("kv_a_norm", parts[0]), k_rope = rotated(parts[1], l, 1);
  Var y;
  if (mode.cache_blocks) {
    y = attend_cached_latents(q, latent, k_rope, layer);
  } else {
    const Var qkv = pack_latent(t, q, keys_and_values(latent, l), k_rope, l.latent());
    y = attention(t, packed(qkv, packed_qkv(l.heads, l.heads, l.qk_dim, l.v_dim)),
                  {slopes, inputs.documents}, scores_of(l));
  }
  if (gates) y = gated(y, gate_x, l);
  const auto scope = t.scope("out");
  return project(t.view(y, {B, T, l.y_size()}), l.y_size(), c.out_bias, join);
}

}  // namespace hearth::inline model
