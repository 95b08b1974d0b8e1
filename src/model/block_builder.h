// BlockBuilder: records the blocks of a decoder from their LayerSpecs. Used by decoder.cpp and
// mtp.cpp alone.
#pragma once

#include <cmath>
#include <numeric>
#include <utility>

#include "model/decoder.h"
#include "model/layer_spec.h"
#include "model/lora.h"

namespace hearth::inline model {

Var embedding(Tape&, const ModelConfig&);  // the table of tokens (V, C)
// The layers of a model and, after them, the blocks of its modules of multi-token prediction.
std::vector<LayerSpec> layers_with_modules(const ModelConfig&);
inline std::string module_scope(int64_t k) { return "mtp." + std::to_string(k); }

struct BlockBuilder {
  Tape& t;
  const ModelConfig& c;  // resolved
  const DecoderInputs& inputs;
  const DecoderMode& mode;
  Var rope, local_rope, slopes, relative;
  std::vector<LayerSpec> layers = {};
  LoraMatrices adapters = {};     // by matrix; empty if they are off
  Var x0 = {};                    // the embedding, after its norm and dropout
  std::vector<Var> outputs = {};  // of the blocks so far
  std::vector<Var> values = {};   // the tokens' rows of the value embeddings
  Var first_values = {};          // of the first layer with attention, if later ones add them

  // Declares what all layers read: adapters, rope, slopes and the bias by distance.
  void begin();

  // --- multi-token prediction (mtp.cpp) ---
  Var module_states(int64_t k, Var ids, Var h, Var table);
  void record_mtp(Var x, Var table);

  // --- parameters ---
  Var param(const char* name, Shape s, Init init, Group group, std::vector<int64_t> stack = {},
            std::vector<HeadRows> heads = {}) const {
    return t.param(name, s, init, group, trains_base(c), std::move(stack), std::move(heads));
  }
  Init matrix_init(int64_t in, bool joins_residual) const {
    if (joins_residual && c.zero_projections) return Init::zeros();
    if (c.init == WeightInit::fan_in) return Init::uniform(float(1 / std::sqrt(double(in))));
    return Init::normal(joins_residual ? float(c.init_std / std::sqrt(2.0 * double(c.layers)))
                                       : c.init_std);
  }
  Var weight(int64_t out, int64_t in, bool joins_residual = false) const {
    return param("weight", {out, in}, matrix_init(in, joins_residual), Group::matrix);
  }
  // Several matrices of these rows, one below the other.
  Var stacked(std::vector<int64_t> rows, int64_t in, std::vector<HeadRows> heads = {}) const {
    const int64_t out = std::reduce(rows.begin(), rows.end());
    return param("weight", {out, in}, matrix_init(in, false), Group::matrix, std::move(rows),
                 std::move(heads));
  }
  // One matrix whose rows belong to heads.
  Var of_heads(std::vector<HeadRows> heads, int64_t in) const {
    int64_t out = 0;
    for (const HeadRows& h : heads) out += h.count * h.rows;
    return param("weight", {out, in}, matrix_init(in, false), Group::matrix, {}, std::move(heads));
  }
  Var bias(bool present, int64_t n, float value = 0) const {
    return present ? param("bias", {n}, Init::constant(value), Group::vector) : Var{};
  }

  // The weights of a gate that reads few inputs: too small for an optimizer of matrices.
  Var small_gate(int64_t out, int64_t in) const {
    return param("weight", {out, in}, matrix_init(in, false), Group::vector);
  }
  // A learned weight, which starts at `start`.
  Var scalar(const char* name, float start) const {
    return param(name, {1}, Init::constant(start), Group::vector);
  }

  Var dropped(Var x, float p, const char* what) const {
    return mode.dropout ? dropout(t, x, p, what) : x;
  }
  void drop_light(Var v) const {
    if (mode.recompute == Recompute::light) t.drop(v);
  }

  // The product with the matrix of the current scope, plus its adapters. Callers declare weight and
  // bias in statements of their own: parameters are stored in the order of their declarations, and
  // C++ leaves the order of arguments open.
  Var product(Var x, Var w, LinearSpec spec) const {
    const auto own = adapters.find(t.where());
    if (own == adapters.end()) return linear(t, x, w, spec);
    const Act act = std::exchange(spec.act, Act::none);
    Var y = linear(t, x, w, spec);
    y = adapted(t, y, mode.dropout ? dropout(t, x, c.lora.dropout, "lora") : x, own->second,
                {.rank = c.lora.rank, .scale = c.lora.scale() * spec.scale});
    return act == Act::none ? y : activation(t, y, act);
  }

  // --- parts of a block ---
  Normed normed(const char* name, Var x, Var residual = {}) const {
    const auto scope = t.scope(name);
    const Var gain = c.norm_gain ? param("gain", {c.dim}, Init::ones(), Group::vector) : Var{};
    const Normed n =
        norm(t, x, residual, gain, bias(c.norm_bias, c.dim), {.kind = c.norm, .eps = c.norm_eps});
    if (!residual) drop_light(n.y);
    return n;
  }

  // The last product of a branch. If nothing follows it, its epilogue adds the residual.
  struct Join {
    Var residual;
    float scale;
  };
  Var project(Var x, int64_t in, bool with_bias, Join join) const {
    LinearSpec spec{.bias = bias(with_bias, c.dim)};  // declared before the weight: file order
    if (join.residual) spec.residual = join.residual, spec.scale = join.scale;
    return product(x, weight(c.dim, in, true), spec);
  }

  Var attend(Var x, int64_t layer, Join join) {
    const LayerSpec& l = layers[size_t(layer)];
    if (l.kv_latent) return attend_latent(x, layer, join);
    const bool gates = c.output_gate != OutputGate::none;
    const Var gate_x = gates && c.gate_inputs ? columns(t, x, 0, c.gate_inputs) : x;
    const QkvLayout layout = packed_qkv(l.heads, l.kv_heads, l.qk_dim, l.v_dim);
    const int64_t B = t.shape(x)[0], T = t.shape(x)[1];
    Var qkv;
    {
      const auto scope = t.scope("qkv");
      const int64_t k = l.kv_heads * l.qk_dim, v = l.kv_heads * l.v_dim;
      const Var w = stacked({l.heads * l.qk_dim, k, v}, c.dim,
                            {{l.heads, l.qk_dim}, {l.kv_heads, l.qk_dim}, {l.kv_heads, l.v_dim}});
      qkv = product(x, w, {.bias = bias(c.qkv_bias, l.qkv_size())});
    }
    if (c.value_residual && !first_values)
      first_values = columns(t, qkv, layout.v.offset, l.v_size());
    const Var keyed = offset(turned(qkv, l), layer, layout.k);
    const Qkv heads = packed(mixed_values(keyed, qkv, l, layout.v), layout);
    const AttnSpec spec = scores_of(l);
    const Masks masks{slopes, inputs.documents, relative};
    Var y = mode.cache_blocks ? attention_cached(t, cache(layer), heads, paged(), masks, spec)
                              : attention(t, heads, masks, spec);
    if (gates) y = gated(y, gate_x, l);
    const auto scope = t.scope("out");
    return project(t.view(y, {B, T, l.y_size()}), l.y_size(), c.out_bias, join);
  }

  AttnSpec scores_of(const LayerSpec& l) const {
    return {.window = l.window,
            .scale = attention_score_scale(c, l.qk_dim),
            .softcap = c.attention_softcap,
            .dropout = mode.dropout ? c.dropout_attention : 0,
            .salt = t.salt("attention"),
            .apart = mode.apart};
  }
  Paged paged() const { return {inputs.positions, inputs.sequences, inputs.tables, mode.depth}; }

  // --- latent attention (latent_attention.cpp) ---
  Var attend_latent(Var x, int64_t layer, Join join) const;
  Var latent_query(Var x, const LayerSpec& l) const;
  Var latent_norm(const char* name, Var x) const;
  Var kv_weight(const LayerSpec& l) const;
  Var keys_and_values(Var latent, const LayerSpec& l) const;
  Var rotated(Var x, const LayerSpec& l, int64_t heads) const;
  Var attend_cached_latents(Var q, Var latent, Var k_rope, int64_t layer) const;

  // `qkv` with the layer's additions to v; `unturned` is qkv before turned().
  Var mixed_values(Var qkv, Var unturned, const LayerSpec& l, const HeadLayout& v) const {
    if (l.value_embed < 0 && !l.value_residual) return qkv;
    const auto scope = t.scope("values");
    const Var own = scalar("own", 0.5f);
    std::vector<Weighted> others;
    if (l.value_embed >= 0)
      others.push_back({values[size_t(l.value_embed)], scalar("embed", 0.5f)});
    if (l.value_residual) others.push_back({first_values, scalar("first", 0.5f)});
    const Var y = mix_values(t, qkv, unturned, own, others, v);
    // Recomputing y needs qkv, so dropping y saves memory only if qkv is dropped or kept anyway.
    if (c.qk_norm != QkNorm::none || qkv == unturned) drop_light(y);
    return y;
  }

  // qkv with RMS norms of all heads of q together and of all heads of k together.
  Var normed_whole(Var qkv, const LayerSpec& l) const {
    const int64_t widths[] = {l.q_size(), l.k_size(), l.v_size()};
    std::vector<Var> parts = split_columns(t, qkv, widths);
    for (const size_t i : {0, 1}) {
      const auto scope = t.scope(i == 0 ? "q_norm" : "k_norm");
      const Var gain =
          c.qk_norm_gain ? param("gain", {widths[i]}, Init::ones(), Group::vector) : Var{};
      parts[i] = norm(t, parts[i], {}, gain, {}, {.kind = Norm::rms, .eps = c.norm_eps}).y;
      drop_light(parts[i]);
    }
    const Var y = join_columns(t, parts);
    drop_light(y);
    return y;
  }

  Var turned(Var qkv, const LayerSpec& l) const {
    if (c.qk_norm_whole) qkv = normed_whole(qkv, l);
    const bool norms = c.qk_norm != QkNorm::none && !c.qk_norm_whole;
    if (!l.rope && !norms) return qkv;
    const Var table = !l.rope ? Var{} : l.rope_local ? local_rope : rope;
    Var q_gain, k_gain;
    if (norms && c.qk_norm_gain) {
      q_gain = param("q_norm.gain", {l.qk_dim}, Init::ones(), Group::vector);
      k_gain = param("k_norm.gain", {l.qk_dim}, Init::ones(), Group::vector);
    }
    const Var y = qk_norm_rope(t, qkv, inputs.positions, table, q_gain, k_gain,
                               {.heads = l.heads,
                                .kv_heads = l.kv_heads,
                                .head_dim = l.qk_dim,
                                .v_dim = l.v_dim,
                                .rotary = table ? 2 * t.shape(table)[1] : 0,
                                .interleaved = c.rope_pairs == RopePairs::interleaved,
                                .reverse = c.rope_reverse,
                                .norm = norms ? c.qk_norm : QkNorm::none,
                                .eps = c.norm_eps});
    // Rotation alone is in place, so dropping would save nothing.
    if (c.qk_norm != QkNorm::none) drop_light(y);
    return y;
  }

  // Partial key offset: the un-rotated dims of every key become those of the token before.
  Var offset(Var qkv, int64_t layer, const HeadLayout& k) const {
    const LayerSpec& l = layers[size_t(layer)];
    if (!l.key_offset) return qkv;
    const int64_t first = l.qk_dim - l.key_offset;
    Var y;
    if (mode.cache_blocks) {
      const Var kept = t.state("cache.keys." + std::to_string(layer),
                               {mode.cache_blocks, cache_block * l.kept_keys()}, t.dtype());
      y = offset_keys_cached(t, kept, qkv, paged(), k, first);
    } else {
      y = offset_keys(t, qkv, inputs.positions, k, first);
    }
    if (c.qk_norm != QkNorm::none) drop_light(y);  // else it is in place, as the rotation
    return y;
  }

  // A state, so that programs of every batch size share its memory.
  Var cache(int64_t layer) const {
    const CacheLayout own = layers[size_t(layer)].cache(mode.cache, t.dtype());
    return t.state("cache." + std::to_string(layer), own.shape(mode.cache_blocks), own.dtype);
  }

  Var gated(Var y, Var x, const LayerSpec& l) const {
    const auto scope = t.scope("gate");
    const bool per_head = c.output_gate == OutputGate::per_head;
    const int64_t n = per_head ? l.heads : l.y_size();
    const Var w = c.gate_inputs ? small_gate(n, c.gate_inputs) : weight(n, c.dim);
    // One output per head, or a few inputs: too narrow for fp8.
    const bool fp8 = !per_head && !c.gate_inputs;
    const Var g = product(x, w, {.bias = bias(true, n, 2), .fp8 = fp8});
    return output_gate(t, y, per_head ? g : t.view(g, t.shape(y)));
  }

  Var feed(Var x, const LayerSpec& l, Join join) const {
    Var h;
    {
      const auto scope = t.scope("up");
      const bool glu = is_glu(l.act);
      const Var w = glu ? stacked({l.hidden, l.hidden}, c.dim) : weight(l.up_size(), c.dim);
      h = product(x, w, {.bias = bias(c.mlp_bias, l.up_size()), .act = glu ? Act::none : l.act});
      if (glu) h = activation(t, h, l.act);
      drop_light(h);
    }
    h = dropped(h, c.dropout_mlp, "hidden");
    const auto scope = t.scope("down");
    return project(h, l.hidden, c.mlp_bias, join);
  }

  Routing routed(Var x, const LayerSpec& l) const {
    const auto scope = t.scope("router");
    const Var w = small_gate(l.experts, c.dim);
    // Starts at 0, has no gradient and is moved by the update program (optim/update_program.h).
    const Var choice =
        c.moe.router_bias ? t.wide_param("bias", {l.experts}, Init::constant(0)) : Var{};
    RouteSpec spec = c.moe.route();
    const auto layers_with = float(
        std::ranges::count_if(layers, [](const LayerSpec& other) { return other.experts > 0; }));
    spec.balance = mode.balance_loss / layers_with, spec.z = mode.router_z_loss / layers_with;
    const Routing r = route(t, router_logits(t, x, w), choice, l.top_k, spec, inputs.counts);
    if (mode.routings) mode.routings->push_back(r);
    return r;
  }

  // The weights of all experts, one below the other; each consists of matrices of `rows` rows.
  Var expert_weights(const LayerSpec& l, const std::vector<int64_t>& rows, int64_t in,
                     bool joins_residual) const {
    std::vector<int64_t> stack;
    for (int64_t e = 0; e < l.experts; ++e) stack.insert(stack.end(), rows.begin(), rows.end());
    const int64_t out = std::reduce(stack.begin(), stack.end());
    return param("weight", {out, in}, matrix_init(in, joins_residual), Group::matrix,
                 std::move(stack));
  }

  Var feed_experts(Var x, const LayerSpec& l, Join join) const {
    Var sum = join.residual;
    if (l.shared_hidden) {
      const auto scope = t.scope("shared");
      LayerSpec shared = l;
      shared.hidden = l.shared_hidden;
      sum = feed(x, shared, join);
    }
    const Routing r = routed(x, l);
    const auto scope = t.scope("experts");
    Var h;
    {
      const auto up = t.scope("up");
      h = expert_activation(t, expert_up(x, l, r), r, l.act);
      drop_light(h);
    }
    const auto down = t.scope("down");
    return expert_down(h, l, r, sum, t.shape(x));
  }

  // The adapters of the current scope's experts; null if there are none.
  const std::vector<LoraModule>* expert_adapters() const {
    const auto own = adapters.find(t.where());
    return own == adapters.end() ? nullptr : &own->second;
  }
  // The first product of the experts, plus its adapters.
  Var expert_up(Var x, const LayerSpec& l, const Routing& r) const {
    const std::vector<int64_t> rows(is_glu(l.act) ? 2 : 1, l.hidden);
    const Var y = expert_linear(t, x, expert_weights(l, rows, c.dim, false), r);
    const std::vector<LoraModule>* own = expert_adapters();
    if (!own) return y;
    const auto [a, b] =
        adapter_params(t, l.experts * l.up_size(), c.dim, *own, c.lora.rank, l.experts);
    const Var h = expert_linear(t, dropped(x, c.lora.dropout, "lora"), a, r);
    return add(t, y, expert_rows_linear(t, h, b, r), c.lora.scale());
  }
  // The last one, which adds up the rows of each token.
  Var expert_down(Var h, const LayerSpec& l, const Routing& r, Var sum, Shape shape) const {
    const Var y = expert_join(t, h, expert_weights(l, {c.dim}, l.hidden, true), r, sum, shape);
    const std::vector<LoraModule>* own = expert_adapters();
    if (!own) return y;
    const auto [a, b] =
        adapter_params(t, l.experts * c.dim, l.hidden, *own, c.lora.rank, l.experts);
    const Var low = expert_rows_linear(t, dropped(h, c.lora.dropout, "lora"), a, r);
    return expert_join(t, add(t, low, low, c.lora.scale() - 1), b, r, y, shape);
  }

  // One half of a block: `to` plus branch(norm(x)), with the norm where the config places it. `to`
  // is x, except in the second half of a block with parallel branches.
  template <class F>
  Var joined(Var x, Var to, float scale, F branch) {
    const NormPlace place = c.norm_place;
    const bool first = place == NormPlace::pre || place == NormPlace::sandwich;
    const bool fused = place == NormPlace::pre && !(mode.dropout && c.dropout_residual > 0);
    const Var in = first ? normed("norm", x).y : x;
    const Join join = fused ? Join{to, scale} : Join{{}, 1};
    Var y = branch(in, join);
    if (fused) return y;
    y = dropped(y, c.dropout_residual, "residual");
    if (place == NormPlace::sandwich) y = normed("post_norm", y).y;
    if (place == NormPlace::after) y = normed("norm", y).y;
    if (place != NormPlace::post) return add(t, to, y, scale);
    return scale == 1 ? normed("norm", y, to).y : normed("norm", add(t, to, y, scale)).y;
  }

  // The input of a block: x, plus what skips to this layer.
  Var joined_skips(Var x, const LayerSpec& l) const {
    if (!l.x0 && l.skip < 0) return x;
    const auto scope = t.scope("mix");
    std::vector<Weighted> terms{{x, scalar("x", 1)}};
    if (l.x0) terms.push_back({x0, scalar("x0", 0)});
    if (l.skip >= 0) terms.push_back({outputs[size_t(l.skip)], scalar("skip", 1)});
    const Var y = mix(t, terms);
    drop_light(y);
    return y;
  }

  Var block(Var x, int64_t layer) {
    const auto scope = t.scope("blocks." + std::to_string(layer));
    return block_here(x, layer);
  }
  // With its parameters in the current scope.
  Var block_here(Var x, int64_t layer) {
    const LayerSpec& l = layers[size_t(layer)];
    x = joined_skips(x, l);
    Var sum = x;
    if (l.attends()) {
      const auto attn = t.scope("attn");
      sum = joined(x, x, c.attention_scale, [&](Var in, Join j) { return attend(in, layer, j); });
    }
    const auto mlp = t.scope("mlp");
    return joined(c.parallel_residual ? x : sum, sum, 1, [&](Var in, Join j) {
      return l.experts ? feed_experts(in, l, j) : feed(in, l, j);
    });
  }

  // The embeddings x of tokens, times the config's factor as it is in the tape's dtype.
  Var scaled(Var x) const {
    float scale = c.embed_scale;
    if (scale == 1) return x;
    if (t.dtype() == DType::bf16) scale = float(bf16(scale));
    if (t.dtype() == DType::f16) scale = float(f16(scale));
    return add(t, x, x, scale - 1);
  }
};

}  // namespace hearth::inline model
