// ModelConfig: one decoder-only model described by data. Every choice is an enum or a number; a
// preset is a named config.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/kernels.h"
#include "model/mla_config.h"
#include "model/moe_config.h"

namespace hearth::inline model {

enum class Position : uint8_t { learned, rope, alibi, relative, none };
enum class RopePairs : uint8_t { half, interleaved };
enum class RopeScaling : uint8_t { none, linear, yarn, llama3, longrope };
// The norm of a branch: of its input; of the sum that it joins; of both its ends; of its output.
enum class NormPlace : uint8_t { pre, post, sandwich, after };
enum class OutputGate : uint8_t { none, elementwise, per_head };
// normal: N(0, std), residual projections divided by sqrt(2 layers). fan_in: U(+-1/sqrt(in)).
enum class WeightInit : uint8_t { normal, fan_in };

#define HEARTH_NAMES(E, ...)                                                    \
  inline std::span<const std::string_view> names_of(E) {                        \
    static constexpr auto names = std::to_array<std::string_view>(__VA_ARGS__); \
    return names;                                                               \
  }
HEARTH_NAMES(Position, {"learned", "rope", "alibi", "relative", "none"})
HEARTH_NAMES(RopePairs, {"half", "interleaved"})
HEARTH_NAMES(RopeScaling, {"none", "linear", "yarn", "llama3", "longrope"})
HEARTH_NAMES(NormPlace, {"pre", "post", "sandwich", "after"})
HEARTH_NAMES(OutputGate, {"none", "elementwise", "per_head"})
HEARTH_NAMES(WeightInit, {"normal", "fan_in"})
HEARTH_NAMES(Norm, {"layer", "rms"})
HEARTH_NAMES(QkNorm, {"none", "before_rope", "after_rope"})
HEARTH_NAMES(Act,
             {"none", "gelu_tanh", "gelu_erf", "relu2", "swiglu", "geglu", "reglu", "geglu_tanh"})
#undef HEARTH_NAMES

// Low-rank adapters: every target W is frozen and computes W x + scale() B A x. See model/lora.h.
struct LoraSpec {
  int64_t rank = 0;  // 0: no adapters
  float alpha = 0;
  float dropout = 0;    // on the input of A, in training
  bool rslora = false;  // scale by alpha / sqrt(rank)
  // Module names as in the model's files (q_proj, attn.c_proj), or "all-linear".
  std::vector<std::string> targets = {"all-linear"};

  explicit operator bool() const { return rank > 0; }
  float scale() const;
  bool operator==(const LoraSpec&) const = default;
};

struct ModelConfig {
  int64_t vocab = 50257, context = 1024, layers = 12, dim = 768, heads = 12;
  int64_t kv_heads = 0, head_dim = 0, hidden = 0;  // 0: derived, see resolve()
  int64_t v_head_dim = 0;                          // 0: head_dim; stays 0 when resolved
  Position position = Position::rope;
  double rope_theta = 1e4;
  float rotary = 1;  // fraction of head_dim that is rotated
  RopePairs rope_pairs = RopePairs::half;
  bool rope_reverse = false;
  RopeScaling rope_scaling = RopeScaling::none;
  float rope_factor = 1, rope_low = 1, rope_high = 4;
  int64_t rope_context = 0;
  std::string rope_short_factors = "", rope_long_factors = "";
  float rope_attention_factor = 0;  // 0: by rope_factor; stays 0 when resolved
  std::string rope_pattern = "";
  double rope_local_theta = 1e4;
  std::string key_offset_pattern = "";
  int64_t relative_buckets = 32, relative_distance = 128;
  Norm norm = Norm::rms;
  bool norm_gain = true;
  bool norm_bias = false;
  float norm_eps = 1e-6f;
  NormPlace norm_place = NormPlace::pre;
  bool parallel_residual = false;
  float embed_scale = 1;
  bool smear = false;
  int64_t bigram_embeds = 0;
  bool embed_norm = false;
  bool final_norm = true;
  bool qkv_bias = false;
  bool out_bias = false;
  bool mlp_bias = false;
  QkNorm qk_norm = QkNorm::none;
  bool qk_norm_gain = true;
  bool qk_norm_whole = false;
  // Patterns have one letter per layer and are repeated over the layers; see model/layer_spec.h.
  std::string mixer_pattern = "";
  bool x0_skip = false, u_skips = false;
  int64_t value_embeds = 0;
  bool value_residual = false;
  int64_t window = 0, long_window = 0;
  std::string window_pattern = "S";
  float score_scale = 0;  // 0: 1 / sqrt(head_dim); stays 0 when resolved
  float attention_softcap = 0;
  OutputGate output_gate = OutputGate::none;
  int64_t gate_inputs = 0;  // 0: all; stays 0 when resolved
  Act act = Act::swiglu;
  MlaConfig mla = {};
  int64_t mtp = 0;
  MoeConfig moe = {};
  bool tied = true;
  float logit_scale = 1;
  float logit_softcap = 0;
  float attention_scale = 1;
  float dropout_embed = 0, dropout_attention = 0, dropout_residual = 0, dropout_mlp = 0;
  WeightInit init = WeightInit::normal;
  float init_std = 0.02f;
  float embed_std = 0;  // 0: as the other weights
  bool zero_projections = false, zero_head = false;
  std::string layout = "";
  // Not visited: adapters belong to a run or to their own folder, not to the model's config.
  LoraSpec lora = {};
  // Not visited: tokens of the longest sequence of a run or an engine, by which longrope chooses
  // its factors; 0: context. See for_length().
  int64_t longest = 0;

  template <class V>
  void visit(V&& v) {
    v("vocab", vocab, "vocabulary size");
    v("context", context, "maximum sequence length");
    v("layers", layers, "number of transformer blocks");
    v("dim", dim, "width of the residual stream");
    v("heads", heads, "query heads");
    v("kv_heads", kv_heads, "key and value heads; 0: same as heads, 1: MQA");
    v("head_dim", head_dim, "width of a head; 0: dim / heads");
    v("v_head_dim", v_head_dim, "width of a value head, if it differs from head_dim; 0: head_dim");
    v("hidden", hidden, "width of the MLP; 0: 4 dim, or 8 dim / 3 rounded up to 256 for a GLU");
    v("position", position,
      "position encoding: learned, rope, alibi, relative (a learned bias of the attention scores "
      "by distance, in the buckets of T5) or none");
    v("rope_theta", rope_theta, "RoPE base frequency");
    v("rotary", rotary, "fraction of each head that RoPE rotates");
    v("rope_pairs", rope_pairs,
      "dims that RoPE rotates together: half (i and i + n/2) or interleaved (2i and 2i+1)");
    v("rope_reverse", rope_reverse, "rotate by the negative angle");
    v("rope_scaling", rope_scaling,
      "RoPE scaling beyond the trained context: none, linear, yarn, llama3 or longrope");
    v("rope_factor", rope_factor, "context length divided by the trained context length");
    v("rope_low", rope_low, "llama3: low frequency factor; yarn: slow beta");
    v("rope_high", rope_high, "llama3: high frequency factor; yarn: fast beta");
    v("rope_context", rope_context, "context length before RoPE scaling");
    v("rope_short_factors", rope_short_factors,
      "longrope: divisors of the frequencies for sequences of at most --rope-context tokens, one "
      "per pair of rotated dims, separated by commas");
    v("rope_long_factors", rope_long_factors,
      "longrope: divisors of the frequencies for longer sequences");
    v("rope_attention_factor", rope_attention_factor,
      "longrope: factor on the rotated dims of q and k; 0: sqrt(1 + ln(--rope-factor) / "
      "ln(--rope-context))");
    v("rope_pattern", rope_pattern,
      "RoPE of the layers, repeated: R (--rope-theta, scaled), L (--rope-local-theta, not scaled) "
      "or N (none); empty: R");
    v("rope_local_theta", rope_local_theta,
      "RoPE base frequency of the layers that --rope-pattern marks L");
    v("key_offset_pattern", key_offset_pattern,
      "keys of the layers, repeated: O (partial key offset: the dims that RoPE does not rotate are "
      "those of the token before) or N (their own); empty: N");
    v("relative_buckets", relative_buckets,
      "relative: buckets of distances; half of them are one distance each, the others grow "
      "logarithmically");
    v("relative_distance", relative_distance,
      "relative: distance from which on all keys are in the last bucket");
    v("norm", norm, "normalisation: layer or rms");
    v("norm_gain", norm_gain, "norms have a gain");
    v("norm_bias", norm_bias, "norms have a bias");
    v("norm_eps", norm_eps, "epsilon added to the variance in norms");
    v("norm_place", norm_place,
      "what the norms of a block normalise: pre: the input of attention and MLP; after: their "
      "output; sandwich: both; post: the sum with the residual stream");
    v("parallel_residual", parallel_residual,
      "attention and the MLP of a block read the same input, and both are added to it");
    v("embed_scale", embed_scale,
      "factor on the token embeddings where a model reads them, rounded to the dtype");
    v("smear", smear,
      "add the embedding of the token before to each embedding, times a learned gate and weight");
    v("bigram_embeds", bigram_embeds,
      "rows of a table of embeddings of token pairs, found by a hash of each token and the one "
      "before it; 0: none");
    v("embed_norm", embed_norm, "apply a norm to the embedding, before the first block");
    v("final_norm", final_norm, "apply a norm before the output head");
    v("qkv_bias", qkv_bias, "bias in the qkv projection");
    v("out_bias", out_bias, "bias in the attention output projection");
    v("mlp_bias", mlp_bias, "biases in the MLP");
    v("qk_norm", qk_norm, "RMS norm of each q and k head: none, before_rope or after_rope");
    v("qk_norm_gain", qk_norm_gain, "the q and k norm has a gain");
    v("qk_norm_whole", qk_norm_whole,
      "norm all heads of q together, and all heads of k, instead of each head; with before_rope");
    v("mixer_pattern", mixer_pattern,
      "blocks of the layers, repeated: A (attention and an MLP) or N (an MLP only); empty: A");
    v("x0_skip", x0_skip,
      "every block but the first adds the embedding to its input, with learned weights");
    v("u_skips", u_skips,
      "blocks of the second half add the output of the mirrored block of the first half to their "
      "input, with learned weights");
    v("value_embeds", value_embeds,
      "extra embeddings of the tokens that are added to the attention values, with learned "
      "weights: "
      "this many tables, each for one of the first and one of the last layers; 0: none");
    v("value_residual", value_residual,
      "later layers add the attention values of the first one to theirs, with learned weights");
    v("window", window, "sliding attention window in tokens, the current one included; 0: none");
    v("long_window", long_window, "sliding attention window of the layers L; 0: none");
    v("window_pattern", window_pattern,
      "attention of the layers, repeated: S (sliding window) or L (full, or --long-window)");
    v("score_scale", score_scale, "factor on the attention scores q . k; 0: 1 / sqrt(head_dim)");
    v("attention_softcap", attention_softcap, "soft cap of the attention scores; 0: none");
    mla.visit(v);
    v("output_gate", output_gate,
      "sigmoid gate on the attention output: none, elementwise or per_head");
    v("gate_inputs", gate_inputs,
      "leading dims of the attention input that the output gate reads; 0: all");
    v("act", act,
      "MLP activation: gelu_tanh, gelu_erf, relu2, swiglu, geglu (erf), geglu_tanh or reglu");
    moe.visit(v);
    v("mtp", mtp,
      "modules of multi-token prediction, each a block that predicts one token further ahead; 0: "
      "none");
    v("tied", tied, "the output head shares the token embedding");
    v("logit_scale", logit_scale, "factor on the logits, before their soft cap");
    v("logit_softcap", logit_softcap, "soft cap c of the logits, c tanh(x / c); 0: none");
    v("attention_scale", attention_scale,
      "factor on the attention branch where it is added to the residual stream");
    v("dropout_embed", dropout_embed, "dropout after the embedding");
    v("dropout_attention", dropout_attention, "dropout on the attention probabilities");
    v("dropout_residual", dropout_residual,
      "dropout on each branch before it is added to the residual stream");
    v("dropout_mlp", dropout_mlp, "dropout on the MLP's hidden layer");
    v("init", init, "weight initialisation: normal or fan_in");
    v("init_std", init_std, "standard deviation of the normal initialisation");
    v("embed_std", embed_std,
      "standard deviation of the initial embeddings, normally distributed; 0: initialised as the "
      "other weights");
    v("zero_projections", zero_projections,
      "the output projections of attention and of the MLP start at zero");
    v("zero_head", zero_head, "an untied output head starts at zero");
    v("layout", layout,
      "model_type of the files that are written, if it can express the model (llama, phi3, ..); "
      "empty: the first that can");
  }

  // Fills in derived fields and checks that all fields are consistent.
  ModelConfig resolve() const;
  bool operator==(const ModelConfig&) const;  // of the visited fields
};

// Parameters of the matrix products that a token passes through (including the head and the experts
// chosen for it, not the embedding lookup and routers), and model FLOPs per trained token at
// sequence length T: 6 per such parameter plus causal attention.
int64_t matmul_params(const ModelConfig&);
// Mean number of keys that a query attends to in a causal sequence of T tokens; `window` 0:
// unlimited.
double mean_keys(int64_t T, int64_t window);
double train_flops_per_token(const ModelConfig&, int64_t T);

std::span<const std::string_view> preset_names();
ModelConfig preset(std::string_view name);  // an unknown name is an error that suggests another

// Radians per position for each rotated pair, with the config's scaling: (rotary dims / 2).
std::vector<double> rope_frequencies(const ModelConfig&);
// cos and sin of `count` positions from `first` on, for every frequency: (count, rotary dims / 2,
// 2). For YaRN and longrope they include the scale of q and k.
std::vector<float> rope_table(const ModelConfig&, int64_t first, int64_t count);
// Number of rows of the rope table of a program that uses `positions` positions: a power of two, at
// most the model's context, so that programs of similar lengths share one table.
int64_t rope_rows(const ModelConfig&, int64_t positions);
// The config for programs whose longest sequence has `tokens` tokens, which choose the factors of
// longrope together; unchanged if it has been made for a length already.
ModelConfig for_length(ModelConfig, int64_t tokens);
// Whether longrope uses its long factors.
bool uses_long_factors(const ModelConfig&);
// A line that says so; empty if it does not.
std::string long_rope_note(const ModelConfig&);
// ALiBi slopes of the heads, as the paper defines them.
std::vector<float> alibi_slopes(int64_t heads);
// The bucket of each distance from 0 to `distance`, as the T5 paper defines them for attention to
// earlier tokens. Larger distances are in the last bucket.
std::vector<int32_t> relative_buckets(int64_t buckets, int64_t distance);

}  // namespace hearth::inline model
