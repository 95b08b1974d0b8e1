#include "model/decoder.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "model/block_builder.h"
#include "sys/error.h"

namespace hearth::inline model {
namespace {

Init table_init(const ModelConfig& c) {
  return c.init == WeightInit::fan_in ? Init::uniform(float(1 / std::sqrt(double(c.dim))))
                                      : Init::normal(c.init_std);
}

constexpr int64_t smear_inputs = 16;  // leading dims of an embedding that its smear gate reads

// The parameters that products read which take quantised weights.
std::set<std::string> quantisable_params(const Tape& t) {
  std::set<std::string> names;
  for (const Node& n : t.nodes)
    if (n.op->quantisable >= 0) {
      const Value& v = t.values[size_t(t[n.in[size_t(n.op->quantisable)]].storage)];
      if (v.role == Role::param) names.insert(v.name);
    }
  return names;
}

Init embed_init(const ModelConfig& c) {
  return c.embed_std > 0 ? Init::normal(c.embed_std) : table_init(c);
}

// The table has rows only for the positions in use, since a config may claim a context that does
// not fit in memory. With a cache the table is a state that its owner extends as sequences grow
// (infer/rope_rows.h).
void declare_ropes(BlockBuilder& b) {
  Tape& t = b.t;
  const ModelConfig& c = b.c;
  const int64_t cached = b.mode.positions ? b.mode.positions : c.context;
  const int64_t rows = rope_rows(c, b.mode.cache_blocks ? cached : t.shape(b.inputs.tokens)[1]);
  const Shape shape{rows, rotated_dims(c) / 2, 2};
  for (const LayerRopeTable& r : layer_rope_tables(c, rows)) {
    Var& table = r.local ? b.local_rope : b.rope;
    table = b.mode.cache_blocks
                ? t.state(r.name, shape, DType::f32)
                : t.table(r.name, shape, [own = r.config](int64_t first, int64_t count) {
                    return rope_table(own, first, count);
                  });
  }
}

// What precedes every token. With a cache the tokens are a state of their own, in the same blocks
// as keys and values.
PreviousTokens previous_of(Tape& t, const ModelConfig& c, const DecoderInputs& inputs,
                           const DecoderMode& mode) {
  if (!reads_previous_tokens(c)) return {};
  if (!mode.cache_blocks)
    return previous_tokens(t, inputs.tokens, inputs.positions,
                           {.row = c.smear, .buckets = c.bigram_embeds});
  const Var cache = t.state("cache.tokens", {mode.cache_blocks, cache_block}, DType::i32);
  return previous_tokens_cached(t, cache, inputs.tokens,
                                {inputs.positions, inputs.sequences, inputs.tables},
                                {.before = c.smear, .buckets = c.bigram_embeds});
}

// x plus the gated embedding of the token before, which is another row of x or, with a cache, may
// be in none.
Var smeared(BlockBuilder& b, Var x, Var table, const PreviousTokens& previous) {
  Tape& t = b.t;
  const auto scope = t.scope("smear");
  const Shape s = t.shape(x);
  const int64_t width = std::min(smear_inputs, s[2]);
  const Var gate = linear(t, columns(t, x, 0, width), b.small_gate(1, width), {.fp8 = false});
  const Var before =
      previous.row ? gather_rows(t, x, previous.row) : b.scaled(embed(t, previous.before, table));
  const Var part = output_gate(t, t.view(before, {s[0], s[1], 1, s[2]}), gate);
  const Weighted terms[] = {{x, {}}, {t.view(part, s), b.scalar("amount", 0)}};
  return mix(t, terms);
}

// The rows that value embeddings have for the tokens. Two layers share a table, so it is read once.
std::vector<Var> value_rows(Tape& t, const ModelConfig& c, std::span<const LayerSpec> layers,
                            Var tokens) {
  std::vector<Var> rows(size_t(c.value_embeds));
  for (const LayerSpec& l : layers) {
    if (l.value_embed < 0 || rows[size_t(l.value_embed)]) continue;
    const Var table =
        t.param(fmt::format("value_embeds.{}.weight", l.value_embed), {c.vocab, l.v_size()},
                embed_init(c), Group::embedding, trains_base(c));
    rows[size_t(l.value_embed)] = embed(t, tokens, table);
  }
  return rows;
}

}  // namespace

Var embedding(Tape& t, const ModelConfig& c) {
  return t.param("embed.weight", {c.vocab, c.dim}, embed_init(c), Group::embedding, trains_base(c));
}

void BlockBuilder::begin() {
  if (c.lora && mode.adapters) adapters = lora_matrices(c);
  declare_ropes(*this);
  if (c.position == Position::alibi)
    slopes = t.table("alibi", {c.heads}, [own = c](int64_t first, int64_t count) {
      const std::vector<float> all = alibi_slopes(own.heads);
      return std::vector<float>(all.begin() + first, all.begin() + first + count);
    });
  // One table for all layers. Too small for an optimizer of matrices.
  if (c.position == Position::relative)
    relative = distance_bias(
        t,
        param("relative_bias.weight", {c.relative_buckets, c.heads}, table_init(c), Group::vector),
        "relative_buckets", relative_buckets(c.relative_buckets, c.relative_distance));
}

DecoderInputs declare_inputs(Tape& t, int64_t B, int64_t T, bool documents) {
  return {t.input("tokens", {B, T}, DType::i32), t.input("positions", {B, T}, DType::i32),
          documents ? t.input("documents", {B, T}, DType::i32) : Var{}};
}

Var decoder(Tape& t, const ModelConfig& config, const DecoderInputs& inputs,
            const DecoderMode& mode) {
  const ModelConfig c = config.resolve();
  if (!mode.cache_blocks && t.shape(inputs.tokens)[1] > c.context)
    fail("model", "expected a sequence of at most {} tokens, got {}", c.context,
         t.shape(inputs.tokens)[1]);
  BlockBuilder b{
      t, c, inputs, mode, {}, {}, {}, {}, mode.further ? layers_with_modules(c) : layer_specs(c)};
  b.begin();

  Var pos_w;
  if (c.position == Position::learned)
    pos_w =
        b.param("positions.weight", {c.context, c.dim}, Init::normal(c.init_std), Group::embedding);
  const Var table = embedding(t, c);
  const PreviousTokens previous = previous_of(t, c, inputs, mode);
  Var x = b.scaled(embed(t, inputs.tokens, table, inputs.positions, pos_w));
  if (c.smear) x = smeared(b, x, table, previous);
  if (c.bigram_embeds)
    x = add(t, x,
            embed(t, previous.bigram,
                  b.param("bigrams.weight", {c.bigram_embeds, c.dim}, Init::zeros(),
                          Group::embedding)));
  if (c.embed_norm) x = b.normed("embed_norm", x).y;
  x = b.dropped(x, c.dropout_embed, "embed");
  b.x0 = x;
  b.values = value_rows(t, c, b.layers, inputs.tokens);
  for (int64_t i = 0; i < c.layers; ++i) {
    x = mode.recompute == Recompute::block ? t.checkpoint([&] { return b.block(x, i); })
                                           : b.block(x, i);
    b.outputs.push_back(x);
  }
  const auto final_norm = [&](Var states) {
    const bool norms = c.final_norm && c.norm_place != NormPlace::post;
    return norms ? b.normed("final_norm", states).y : states;
  };
  // A norm of its own, not the one that the head reads, so that the logits keep their bits.
  if (mode.modules)
    keep_states(t, c, {state_levels(mode.modules), mode.cache_blocks}, 0, final_norm(x), b.paged());
  if (mode.wanted) x = gather_rows(t, x, mode.wanted);
  x = final_norm(x);
  if (mode.further) b.record_mtp(x, table);
  return x;
}

Var head_weight(Tape& t, const ModelConfig& config) {
  const ModelConfig c = config.resolve();
  if (c.tied) return embedding(t, c);
  const Init init = c.zero_head ? Init::zeros() : table_init(c);
  return t.param("head.weight", {c.vocab, c.dim}, init, Group::head, trains_base(c));
}

std::vector<ParamSpec> decoder_params(const ModelConfig& config, WeightFormat format) {
  Tape t;
  t.trains = format == WeightFormat::plain;
  std::vector<Var> further;
  decoder(t, config, declare_inputs(t, 1, 1, false), {.further = &further});
  const Var head = head_weight(t, config);
  if (format == WeightFormat::plain) return t.params;
  const std::set<std::string> quantisable = quantisable_params(t);
  for (ParamSpec& p : t.params) {
    const bool adapter = config.lora && p.trainable;  // small, so not worth quantising
    // Decoding multiplies by kv_b from both sides (attention_latent).
    const bool absorbed = p.name.ends_with(".attn.kv_b.weight");
    if (p.group == Group::matrix && quantisable.contains(p.name) && !adapter && !absorbed)
      p.format = format;
    if (p.name == t[head].name) p.format = WeightFormat::int8;
  }
  return t.params;
}

int64_t count_params(const ModelConfig& config) {
  int64_t n = 0;
  for (const ParamSpec& p : decoder_params(config)) n += p.shape.numel();
  return n;
}

int64_t count_active_params(const ModelConfig& config) {
  const ModelConfig c = config.resolve();
  int64_t n = count_params(c);
  for (const LayerSpec& l : layers_with_modules(c))
    n -= (l.experts - l.top_k) * (l.up_size() + l.hidden) * c.dim;
  return n;
}

}  // namespace hearth::inline model
