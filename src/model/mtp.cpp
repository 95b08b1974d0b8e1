// Modules of multi-token prediction: their states and losses in training, and their states over a
// paged cache, from which the engine drafts tokens.
#include <fmt/format.h>

#include "model/block_builder.h"
#include "ops/mla.h"
#include "sys/error.h"

namespace hearth::inline model {

namespace {

// The same values, through which no gradient flows.
Var detached(Tape& t, Var v) {
  return t.view(t.rows(v, 0, t.shape(v).numel() / t.shape(v)[-1]), t.shape(v));
}

}  // namespace

std::vector<LayerSpec> layers_with_modules(const ModelConfig& c) {
  std::vector<LayerSpec> all = layer_specs(c);
  if (c.mtp) all.insert(all.end(), size_t(c.mtp), mtp_layer(c));
  return all;
}

// `ids` are the tokens k + 1 further; h are the states of the previous module or of the model. The
// table is that of the model, so it is declared outside the module's scope.
Var BlockBuilder::module_states(int64_t k, Var ids, Var h, Var table) {
  const Var e = normed("enorm", scaled(embed(t, ids, table))).y;
  const Var both[] = {e, normed("hnorm", h).y};
  Var joined = join_columns(t, both);
  {
    const auto scope = t.scope("proj");
    joined = product(joined, weight(c.dim, 2 * c.dim), {});
  }
  const auto scope = t.scope("block");
  return block_here(joined, c.layers + k);
}

// Module k reads the states of the previous one (or of the model) and the embedding of the token k
// + 1 further, which are zeros where the sequence ends.
void BlockBuilder::record_mtp(Var x, Var table) {
  if (mode.detached) {
    x = detached(t, x), table = detached(t, table);
    if (relative) relative = detached(t, relative);
  }
  const auto module = [&](int64_t k, Var h) {
    return module_states(k, further_tokens(t, inputs.tokens, inputs.positions, k + 1), h, table);
  };
  for (int64_t k = 0; k < c.mtp; ++k) {
    const auto scope = t.scope(module_scope(k));
    x = mode.recompute == Recompute::block ? t.checkpoint([&] { return module(k, x); })
                                           : module(k, x);
    mode.further->push_back(normed("norm", x).y);
  }
}

void record_mtp_losses(Tape& t, const ModelConfig& model, const MtpLossVars& m, float weight,
                       HeadSpec head) {
  if (weight == 0)
    fail_usage("--mtp-loss", "expected a weight above 0 for a model with mtp {}, got 0", model.mtp);
  head.scale = model.logit_scale, head.softcap = model.logit_softcap;
  for (int64_t k = 0; k < model.mtp; ++k) {
    head.term = {.name = fmt::format("mtp_{}", k + 1),
                 .weight = weight / float(model.mtp),
                 .validate = false,
                 .ahead = k + 1};
    const Var all = m.states[size_t(k)], w = head_weight(t, model);
    if (m.rows)
      head_loss(t, gather_rows(t, all, m.rows), w, t.rows(m.module_targets, k, 1), head);
    else
      head_loss(t, all, w, further_tokens(t, m.targets, m.positions, k + 1), head);
  }
}

bool is_of_module(const ParamSpec& p) { return p.name.starts_with("mtp."); }

// --- with a cache ---

Var cached_states(Tape& t, const ModelConfig& c, const StateLevels& s) {
  return t.state("cache.states", {s.levels * s.blocks, cache_block * c.dim}, t.dtype());
}

// Stores the rows of x in the cache. The op that stores a latent and a rotated key writes two parts
// of a row, so x is split into two halves for it.
void keep_states(Tape& t, const ModelConfig& c, const StateLevels& s, int64_t level, Var x,
                 const Paged& paged) {
  const int64_t widths[] = {c.dim - c.dim / 2, c.dim / 2};
  const std::vector<Var> halves = split_columns(t, x, widths);
  const Var own = t.rows(cached_states(t, c, s), level * s.blocks, s.blocks);
  latent_cached(t, own, halves[0], halves[1], paged, 0, 0);
}

Var mtp_module(Tape& t, const ModelConfig& config, const DecoderInputs& inputs,
               const DecoderMode& mode, int64_t k, Var h) {
  const ModelConfig c = config.resolve();
  BlockBuilder b{t, c, inputs, mode, {}, {}, {}, {}, layers_with_modules(c)};
  b.begin();
  const Var table = embedding(t, c);
  const auto scope = t.scope(module_scope(k));
  return b.module_states(k, inputs.tokens, h, table);
}

Var mtp_norm(Tape& t, const ModelConfig& config, int64_t k, Var x) {
  const ModelConfig c = config.resolve();
  const DecoderInputs inputs{};
  const DecoderMode mode{};
  const BlockBuilder b{t, c, inputs, mode, {}, {}, {}, {}};
  const auto scope = t.scope(module_scope(k));
  return b.normed("norm", x).y;
}

int64_t mtp_block_bytes(const ModelConfig& c, int64_t modules, CacheFormat format, DType plain) {
  if (modules == 0) return 0;
  return modules * mtp_layer(c).cache(format, plain).block_bytes() +
         state_levels(modules) * cache_block * c.dim * size_of(plain);
}

}  // namespace hearth::inline model
