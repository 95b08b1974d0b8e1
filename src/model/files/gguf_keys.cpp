// Reads and writes the keys of GGUF models. Reading translates them to Hugging Face's names, so
// that one reader checks both formats.
#include "model/files/gguf_keys.h"

#include <algorithm>
#include <cmath>

#include "formats/fields.h"
#include "model/decoder.h"
#include "model/files/folder.h"
#include "model/layer_spec.h"
#include "sys/error.h"

namespace hearth::inline model {
namespace {

using nlohmann::json;

// llama.cpp has one GELU for gptneox and no key that says which one a model was trained with.
constexpr const char* act_key = "hearth.hidden_act";
// llama.cpp knows by the number of layers that these scale scores by another width than a head's.
constexpr int64_t gemma2_27b = 46, gemma3_27b = 62;
constexpr double gemma3_local_base = 1e4;  // of the RoPE of layers with a window

// Every Nth layer has no window, unless a file has the key with another number.
int64_t usual_period(HfType type) { return type == HfType::gemma2 ? 2 : 6; }
constexpr const char *window_key = "attention.sliding_window",
                     *period_key = "attention.sliding_window_pattern";

bool is_gemma23(HfType t) { return t == HfType::gemma2 || t == HfType::gemma3_text; }
bool has_gelu(HfType t) { return t == HfType::gpt2 || t == HfType::gpt_neox; }

// --- reading ---

// Keys that llama.cpp has for some architectures and that change the numbers.
void refuse_unused_keys(const GgufTable& f, const std::string& arch, HfType type) {
  static constexpr std::pair<std::string_view, double> neutral[] = {
      {"rope.scaling.attn_factor", 1}, {"attention.scale", 0},
      {"attention.clamp_kqv", 0},      {"logit_scale", 1},
      {"residual_scale", 1},           {"embedding_scale", 1}};
  for (const auto& [name, value] : neutral) {
    const std::string key = arch + std::string(name);
    if (name == "rope.scaling.attn_factor" && has_long_rope(f, arch)) continue;
    if (f.has(key) && f.number(key) != value)
      fail(f.where, "expected {} to be {}, got {}: not supported", key, value, f.number(key));
  }
  const std::string causal = arch + "attention.causal", window = arch + window_key;
  if (f.has(causal) && !f.flag(causal))
    fail(f.where, "expected {} to be true, got false: such a model predicts no next tokens",
         causal);
  if (type == HfType::olmo2 && f.has(window) && f.whole(window) > 0)
    fail(f.where, "expected no {}, got {}: OLMo 3 is not supported", window, f.whole(window));
  if (type == HfType::deepseek_v3) return;
  const std::string k = arch + "attention.key_length", v = arch + "attention.value_length";
  if (f.has(k) && f.has(v) && f.whole(k) != f.whole(v))
    fail(f.where, "expected {} to be {} as {} is, got {}", v, f.whole(k), k, f.whole(v));
}

json read_gpt2_keys(const GgufTable& f, const std::string& arch) {
  return {{"n_positions", f.whole(arch + "context_length")},
          {"n_embd", f.whole(arch + "embedding_length")},
          {"n_layer", f.whole(arch + "block_count")},
          {"n_inner", f.whole(arch + "feed_forward_length")},
          {"n_head", f.whole(arch + "attention.head_count")},
          {"layer_norm_epsilon", f.number(arch + "attention.layer_norm_epsilon")},
          {"embd_pdrop", 0},
          {"attn_pdrop", 0},
          {"resid_pdrop", 0}};
}

json read_neox_keys(const GgufTable& f, const std::string& arch) {
  const int64_t dim = f.whole(arch + "embedding_length");
  const int64_t heads = f.whole(arch + "attention.head_count");
  const int64_t head = heads > 0 ? dim / heads : 0,
                rotated = f.whole(arch + "rope.dimension_count");
  if (rotated < 1 || rotated > head)
    fail(f.where, "expected {}rope.dimension_count between 1 and {}, the width of a head, got {}",
         arch, head, rotated);
  json rope = read_rope_keys(f, arch);
  rope["partial_rotary_factor"] = double(rotated) / double(head);
  return {{"max_position_embeddings", f.whole(arch + "context_length")},
          {"hidden_size", dim},
          {"num_hidden_layers", f.whole(arch + "block_count")},
          {"intermediate_size", f.whole(arch + "feed_forward_length")},
          {"num_attention_heads", heads},
          {"layer_norm_eps", f.number(arch + "attention.layer_norm_epsilon")},
          {"use_parallel_residual", f.flag(arch + "use_parallel_residual")},
          {"hidden_act", f.has(act_key) ? f.text(act_key) : "gelu"},
          {"rope_parameters", rope}};
}

// The width by which scores are scaled.
int64_t score_width(HfType type, int64_t layers, int64_t dim, int64_t heads, int64_t head) {
  const bool by_dim = (type == HfType::gemma2 && layers == gemma2_27b) ||
                      (type == HfType::gemma3_text && layers == gemma3_27b);
  return by_dim && heads > 0 ? dim / heads : head;
}

// As in llama.cpp: every n-th layer has no window; 0: every layer has one.
json layer_types(const GgufTable& f, int64_t every, int64_t layers) {
  if (layers > int64_t(f.tensors.size()))  // a key could claim any number
    fail(f.where, "expected tensors for {} layers, got {}", layers, f.tensors.size());
  json types = json::array();
  for (int64_t i = 0; i < layers; ++i)
    types.push_back(every == 0 || (i + 1) % every ? "sliding_attention" : "full_attention");
  return types;
}

void read_gemma_keys(json& j, const GgufTable& f, const std::string& arch, HfType type) {
  j["query_pre_attn_scalar"] = score_width(type, j["num_hidden_layers"], j["hidden_size"],
                                           j["num_attention_heads"], j["head_dim"]);
  const std::string window = arch + window_key, period = arch + period_key;
  if (f.has(window)) j["sliding_window"] = f.whole(window);
  // llama.cpp gives a gemma3 windows, and the RoPE of layers with a window, only by this key.
  const bool full = type == HfType::gemma3_text && (!f.has(window) || f.whole(window) == 0);
  if (full) {
    j["layer_types"] = layer_types(f, 1, j["num_hidden_layers"]);
  } else if (f.has(period)) {
    const int64_t every = f.whole(period);
    if (every < 0) fail(f.where, "expected {} of 0 or more, got {}", period, every);
    j["layer_types"] = layer_types(f, every, j["num_hidden_layers"]);
  }
  for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"})
    if (f.has(arch + cap)) j[cap] = f.number(arch + cap);
  const std::string local = arch + "rope.freq_base_swa";
  if (type == HfType::gemma2) {  // one RoPE for all layers
    if (const double theta = j["rope_parameters"]["rope_theta"];
        f.has(local) && f.number(local) != theta)
      fail(f.where, "expected {} to be {} as {}rope.freq_base is, got {}: not supported", local,
           theta, arch, f.number(local));
    return;
  }
  j["rope_parameters"] = {
      {"full_attention", j["rope_parameters"]},
      {"sliding_attention",
       {{"rope_type", "default"},
        {"rope_theta", !full && f.has(local) ? f.number(local) : gemma3_local_base}}}};
}

json read_llama_keys(const GgufTable& f, const std::string& arch, HfType type) {
  const std::string attention = arch + "attention.";
  json j{{"max_position_embeddings", f.whole(arch + "context_length")},
         {"hidden_size", f.whole(arch + "embedding_length")},
         {"num_hidden_layers", f.whole(arch + "block_count")},
         {"intermediate_size", f.whole(arch + "feed_forward_length")},
         {"num_attention_heads", f.whole(attention + "head_count")},
         {"rms_norm_eps", f.number(attention + "layer_norm_rms_epsilon")},
         {"attention_bias", f.tensors.contains("blk.0.attn_q.bias")},
         {"mlp_bias", f.tensors.contains("blk.0.ffn_up.bias")},
         {"rope_parameters", read_rope_keys(f, arch)}};
  if (type == HfType::deepseek_v3) {
    read_latent_keys(j, f, arch);
    return j;
  }
  j["num_key_value_heads"] =
      f.whole(attention + (f.has(attention + "head_count_kv") ? "head_count_kv" : "head_count"));
  const int64_t heads = f.whole(attention + "head_count");
  const int64_t head = f.has(attention + "key_length") ? f.whole(attention + "key_length")
                       : heads > 0                     ? f.whole(arch + "embedding_length") / heads
                                                       : 0;
  j["head_dim"] = head;
  const std::string rotary = arch + "rope.dimension_count";
  if (f.has(rotary) && f.whole(rotary) != head) {
    if (type != HfType::phi3 || head < 1)
      fail(f.where, "expected {} to be the head dimension {}, got {}", rotary, head,
           f.whole(rotary));
    j["partial_rotary_factor"] = double(f.whole(rotary)) / double(head);
  }
  expect_factor_tensors(f, arch, f.has(rotary) ? f.whole(rotary) : head);
  if (type == HfType::phi3 && f.has(attention + "sliding_window"))
    j["sliding_window"] = f.whole(attention + "sliding_window");
  if (is_gemma23(type)) read_gemma_keys(j, f, arch, type);
  return j;
}

}  // namespace

bool computes_other_gelu(const ModelConfig& c, HfType type) {
  return type == HfType::gpt_neox && c.act == Act::gelu_erf;
}

std::string_view gguf_architecture(HfType type) {
  switch (type) {
    case HfType::mistral:  // a llama there, and only without a window
    case HfType::hearth:
      return {};
    case HfType::gpt_neox:
      return "gptneox";
    case HfType::gemma3_text:
      return "gemma3";
    case HfType::mixtral:
      return "llama";
    case HfType::qwen3_moe:
      return "qwen3moe";
    case HfType::deepseek_v3:
      return "deepseek2";
    default:
      return enum_name(type);
  }
}

HfType gguf_type(const GgufTable& f) {
  const std::string_view name = f.text("general.architecture");
  if (name == "llama" && f.has("llama.expert_count") && f.whole("llama.expert_count") > 0)
    return HfType::mixtral;
  std::string known;
  for (size_t i = 0; i < names_of(HfType{}).size(); ++i) {
    const std::string_view own = gguf_architecture(HfType(i));
    if (own.empty() || HfType(i) == HfType::mixtral) continue;
    if (own == name) return HfType(i);
    known += (known.empty() ? "" : ", ") + std::string(own);
  }
  fail(f.where, "expected general.architecture to be one of {}, got {}", known, in_quotes(name));
}

ModelConfig read_gguf_config(const GgufTable& f) {
  const HfType type = gguf_type(f);
  const std::string arch = std::string(gguf_architecture(type)) + ".";
  refuse_unused_keys(f, arch, type);
  json j = type == HfType::gpt2       ? read_gpt2_keys(f, arch)
           : type == HfType::gpt_neox ? read_neox_keys(f, arch)
                                      : read_llama_keys(f, arch, type);
  read_expert_keys(j, f, arch, type);
  const auto embed = f.tensors.find("token_embd.weight");
  if (embed == f.tensors.end() || embed->second.shape.size() != 2)
    fail(f.where, "the matrix token_embd.weight is missing");
  j["vocab_size"] = embed->second.shape[0];
  j["model_type"] = enum_name(type);
  j["tie_word_embeddings"] = !f.tensors.contains("output.weight");
  const ModelConfig c = config_from_hf_json(j, f.where);
  check_rope_factors(f, c);
  return c;
}

// --- writing ---

namespace {

// The N of which every Nth layer has no window; 0: every layer has one; 1: none has one. Absent for
// other patterns.
std::optional<int64_t> full_attention_period(const ModelConfig& c, HfType type) {
  const std::vector<LayerSpec> layers = layer_specs(c);
  const auto is = [&](int64_t every) {
    for (int64_t i = 0; i < c.layers; ++i)
      if ((layers[size_t(i)].window == 0) != (every > 0 && (i + 1) % every == 0)) return false;
    return true;
  };
  if (is(usual_period(type))) return usual_period(type);
  const auto full = std::ranges::find(layers, 0, &LayerSpec::window);
  const int64_t every = full == layers.end() ? 0 : full - layers.begin() + 1;
  return is(every) ? std::optional(every) : std::nullopt;
}

// A window that no text of the model's context fills, as of published models of 128k tokens.
bool is_idle_window(const ModelConfig& c, HfType type) {
  return type == HfType::phi3 && c.window >= c.context;
}

// What llama.cpp has no key for must be as it assumes.
void check_gemma(const ModelConfig& c, HfType type, std::string_view name) {
  if (!c.tied) fail("gguf", "{} in GGUF must have a tied head", name);
  if (type == HfType::gemma) return;
  const bool second = type == HfType::gemma2;
  const std::optional<int64_t> period = full_attention_period(c, type);
  if (!period)
    fail("gguf",
         "{} in GGUF must have a window in every layer, or in all but every second, third or Nth",
         name);
  if (second && period == 1)  // llama.cpp aborts
    fail("gguf", "{} in GGUF must have a window in at least one layer", name);
  if (second && !(c.attention_softcap > 0 && c.logit_softcap > 0))
    fail("gguf", "{} in GGUF must have soft caps of scores and of logits", name);
  if (!second && c.rope_scaling == RopeScaling::yarn)
    fail("gguf", "{} in GGUF cannot use the rope_scaling yarn", name);
  if (!second && c.rope_local_theta != gemma3_local_base)
    fail("gguf", "expected a rope_local_theta of {} for {} in GGUF, got {}", gemma3_local_base,
         name, c.rope_local_theta);
  const float scale = c.score_scale > 0 ? c.score_scale : float(1 / std::sqrt(double(c.head_dim)));
  const int64_t width = score_width(type, c.layers, c.dim, c.heads, c.head_dim);
  if (std::abs(scale - float(1 / std::sqrt(double(width)))) > 1e-6f * scale)
    fail("gguf", "{} in GGUF must scale scores by 1 / sqrt({}), got {}", name, width, scale);
}

void check_layers(const ModelConfig& c, HfType type, std::string_view name) {
  const bool neox = type == HfType::gpt_neox;
  if ((type == HfType::olmo2 || neox) && c.tied)
    fail("gguf", "{} in GGUF must have an untied head", name);
  if (neox && !c.qkv_bias && !c.out_bias)
    fail("gguf", "{} in GGUF must have biases of attention", name);
  const bool square = type == HfType::olmo2 || type == HfType::qwen2 || type == HfType::phi3;
  if (square && c.heads * c.head_dim != c.dim)
    fail("gguf", "{} in GGUF must have heads as wide as the model, {} in all, got {} of {}", name,
         c.dim, c.heads, c.head_dim);
  if (type == HfType::smollm3)
    for (int64_t i = 0; i < c.layers; ++i)
      if (layer_specs(c)[size_t(i)].rope != ((i + 1) % 4 != 0))
        fail("gguf", "smollm3 in GGUF must leave RoPE out in every fourth layer");
  if (c.window > 0 && !is_gemma23(type) && !is_idle_window(c, type))
    fail("gguf", "{} in GGUF cannot have a sliding window, got one of {} tokens", name, c.window);
}

}  // namespace

// llama.cpp has a mistral without a window as a llama, and supports less for its architectures than
// their folders can express.
HfType exportable(const ModelConfig& c) {
  HfType type = hf_type(c);
  if (type == HfType::mistral) type = HfType::llama;
  const std::string_view name = gguf_architecture(type);
  if (c.v_head_dim > 0 && !c.mla)
    fail("gguf", "expected heads of values as wide as those of keys, got a v_head_dim of {}",
         c.v_head_dim);
  if (c.mixer_pattern != ModelConfig{}.mixer_pattern)
    fail("gguf", "expected attention in every layer, got a mixer_pattern of {}",
         in_quotes(c.mixer_pattern));
  if (name.empty()) {
    const std::string why = why_own_layout(c);
    fail("gguf", "llama.cpp has no architecture that computes this model, so GGUF cannot hold it{}",
         why.empty() ? why : ": " + why);
  }
  const bool gemma = type == HfType::gemma || is_gemma23(type);
  const Act act = has_gelu(type) ? Act::gelu_tanh : gemma ? Act::geglu_tanh : Act::swiglu;
  if (c.act != act && !computes_other_gelu(c, type))
    fail("gguf", "expected act {} for {}, got {}", enum_name(act), name, enum_name(c.act));
  const bool biased = has_gelu(type) || type == HfType::llama || type == HfType::qwen2;
  if (!biased && (c.qkv_bias || c.out_bias || c.mlp_bias))
    fail("gguf", "{} in GGUF cannot have biases", name);
  check_rope(c, type, name);
  check_layers(c, type, name);
  if (gemma) check_gemma(c, type, name);
  check_experts(c, type);
  if (c.mla) check_latents(c);
  return type;
}

void put_config(GgufKeys& keys, const ModelConfig& c, HfType type) {
  const std::string arch = std::string(gguf_architecture(type)) + ".";
  keys.set(arch + "vocab_size", c.vocab);
  keys.set(arch + "context_length", c.context);
  keys.set(arch + "embedding_length", c.dim);
  keys.set(arch + "block_count", c.layers);
  keys.set(arch + "feed_forward_length", type == HfType::mixtral ? c.moe.expert_hidden : c.hidden);
  keys.set(arch + "attention.head_count", c.heads);
  if (!c.mla) keys.set(arch + "attention.head_count_kv", c.kv_heads);
  keys.set(
      arch + (has_gelu(type) ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon"),
      c.norm_eps);
  if (!c.mla && !has_gelu(type)) keys.set(arch + "attention.key_length", c.head_dim);
  if (!c.mla && !has_gelu(type)) keys.set(arch + "attention.value_length", c.head_dim);
  if (type != HfType::gpt2) put_rope(keys, c, arch);
  if (type == HfType::gpt_neox) {
    keys.set(arch + "use_parallel_residual", c.parallel_residual);
    keys.set(act_key, c.act == Act::gelu_erf ? "gelu" : "gelu_new");
  }
  if (is_idle_window(c, type)) keys.set(arch + window_key, c.window);
  if (c.mla) put_latents(keys, c, arch);
  put_experts(keys, c, type, arch);
  if (is_gemma23(type)) {
    const int64_t period = full_attention_period(c, type).value();
    if (period != 1) keys.set(arch + window_key, c.window);  // without it no layer has a window
    if (period != 1 && period != usual_period(type)) keys.set(arch + period_key, period);
    if (c.attention_softcap > 0) keys.set(arch + "attn_logit_softcapping", c.attention_softcap);
    if (c.logit_softcap > 0) keys.set(arch + "final_logit_softcapping", c.logit_softcap);
  }
}

}  // namespace hearth::inline model
