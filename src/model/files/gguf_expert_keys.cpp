// The keys of GGUF models with experts (mixtral, which is a llama there, qwen3moe, deepseek2) and
// of latent attention (deepseek2), with the conditions under which llama.cpp computes what hearth
// does.
#include <cmath>

#include "formats/json.h"
#include "model/files/gguf_keys.h"
#include "model/layer_spec.h"
#include "sys/error.h"

namespace hearth::inline model {
namespace {

using nlohmann::json;

// llama.cpp's numbers of the functions that make scores of a router's logits. Files without one, or
// with 0, mean softmax.
constexpr std::string_view gating_names[] = {"softmax", "softmax", "sigmoid", "softmax_weight",
                                             "sqrtsoftplus"};
constexpr int64_t softmax_gating = 1, sigmoid_gating = 2;

int64_t whole_or(const GgufTable& f, const std::string& key, int64_t absent) {
  return f.has(key) ? f.whole(key) : absent;
}

void expect_gating(const GgufTable& f, const std::string& arch, int64_t want) {
  const std::string key = arch + "expert_gating_func";
  const int64_t got = whole_or(f, key, 0);
  const bool known = got >= 0 && got < int64_t(std::size(gating_names));
  const std::string_view name = known ? gating_names[got] : "unknown";
  if (name != gating_names[want])
    fail(f.where, "expected {} to be {} ({}), got {} ({}): not supported", key, want,
         gating_names[want], got, name);
}

// --- reading: mixtral and qwen3moe ---

// llama.cpp computes these with a softmax, divides the weights by their sum, and has no groups.
void refuse_other_routers(const GgufTable& f, const std::string& arch) {
  expect_gating(f, arch, softmax_gating);
  if (const std::string key = arch + "expert_weights_norm"; f.has(key) && !f.flag(key))
    fail(f.where, "expected {} to be true, got false: not supported", key);
  if (const std::string key = arch + "expert_weights_scale";
      f.has(key) && f.number(key) != 0 && f.number(key) != 1)
    fail(f.where, "expected {} to be 1, got {}: not supported", key, f.number(key));
  if (const std::string key = arch + "expert_shared_count"; whole_or(f, key, 0) != 0)
    fail(f.where, "expected {} to be 0, got {}: not supported", key, f.whole(key));
  if (const std::string key = arch + "expert_group_count"; whole_or(f, key, 0) > 1)
    fail(f.where, "expected {} to be 1, got {}: not supported", key, f.whole(key));
}

void read_softmax_experts(json& j, const GgufTable& f, const std::string& arch, HfType type) {
  refuse_other_routers(f, arch);
  const int64_t used = f.whole(arch + "expert_used_count");
  j["num_experts_per_tok"] = used;
  if (type == HfType::mixtral) {
    j["num_local_experts"] = f.whole(arch + "expert_count");
    j["sliding_window"] = nullptr;
    return;
  }
  j["num_experts"] = f.whole(arch + "expert_count");
  j["norm_topk_prob"] = true;
  const std::string width = arch + "expert_feed_forward_length";
  if (f.has(width))
    j["moe_intermediate_size"] = f.whole(width);
  else if (used > 0)  // as llama.cpp has it
    j["moe_intermediate_size"] = f.whole(arch + "feed_forward_length") / used;
}

// --- reading: deepseek2 ---

void read_sigmoid_experts(json& j, const GgufTable& f, const std::string& arch) {
  const int64_t dense = whole_or(f, arch + "leading_dense_block_count", 0);
  j["first_k_dense_replace"] = dense;
  if (dense >= j["num_hidden_layers"].get<int64_t>()) return;
  expect_gating(f, arch, sigmoid_gating);
  j["n_routed_experts"] = f.whole(arch + "expert_count");
  j["num_experts_per_tok"] = f.whole(arch + "expert_used_count");
  j["moe_intermediate_size"] = f.whole(arch + "expert_feed_forward_length");
  j["n_shared_experts"] = f.whole(arch + "expert_shared_count");
  const std::string norm = arch + "expert_weights_norm", scale = arch + "expert_weights_scale";
  j["norm_topk_prob"] = f.has(norm) && f.flag(norm);
  j["routed_scaling_factor"] = f.has(scale) && f.number(scale) != 0 ? f.number(scale) : 1.0;
  const int64_t groups = whole_or(f, arch + "expert_group_count", 1);
  j["n_group"] = groups > 1 ? groups : 1;
  j["topk_group"] = groups > 1 ? f.whole(arch + "expert_group_used_count") : 1;
}

// Reads YaRN's scaling of the scores. llama.cpp multiplies scores by the square of
// 1 + multiplier log(factor). Without a multiplier it computes a factor that Hugging Face's
// configuration cannot express, so such a file is refused.
void read_latent_scaling(json& rope, const GgufTable& f, const std::string& arch) {
  const std::string scaling = arch + "rope.scaling.";
  if (rope["rope_type"] == "default") return;
  if (rope["rope_type"] != "yarn")
    fail(f.where, "expected {}type to be none or yarn, got {}: not supported", scaling,
         in_quotes(rope["rope_type"].get<std::string>()));
  const std::string key = scaling + "yarn_log_multiplier";
  const double stored = f.has(key) ? f.number(key) : 0;
  if (!(stored > 0))
    fail(f.where, "expected {} above 0 with yarn, got {}: not supported", key, stored);
  // The file has a tenth of it in f32: 0.707 should not become 0.70700002.
  const double exact = stored / 0.1, rounded = std::round(exact * 1e6) / 1e6;
  const double mscale = float(rounded * 0.1) == float(stored) ? rounded : exact;
  rope["mscale"] = rope["mscale_all_dim"] = mscale;
}

}  // namespace

bool has_split_keys(const GgufTable& f) {
  return f.has(std::string(gguf_architecture(HfType::deepseek_v3)) + ".attention.key_length_mla");
}

void read_expert_keys(json& j, const GgufTable& f, const std::string& arch, HfType type) {
  if (type == HfType::deepseek_v3)
    read_sigmoid_experts(j, f, arch);
  else if (type == HfType::mixtral || type == HfType::qwen3_moe)
    read_softmax_experts(j, f, arch, type);
  else if (const std::string key = arch + "expert_count"; whole_or(f, key, 0) > 0)
    fail(f.where, "expected {} to be 0, got {}: not supported", key, f.whole(key));
}

void read_latent_keys(json& j, const GgufTable& f, const std::string& arch) {
  const std::string attention = arch + "attention.", eps = attention + "layer_norm_rms_epsilon";
  if (float(f.number(eps)) != latent_norm_eps)
    fail(f.where, "expected {} to be {}, which norms of latents have, got {}: not supported", eps,
         latent_norm_eps, f.number(eps));
  const std::string temperature = attention + "temperature_scale";
  if (f.has(temperature) && f.number(temperature) != 0)
    fail(f.where, "expected {} to be 0, got {}: not supported", temperature, f.number(temperature));
  // Newer files also give the sizes of heads as they are in the cache.
  const std::string of = has_split_keys(f) ? "_mla" : "", rotated = arch + "rope.dimension_count";
  const int64_t head = f.whole(attention + "key_length" + of), rope = f.whole(rotated);
  if (rope < 1 || rope >= head)
    fail(f.where, "expected {} between 1 and below {}, the width of a head, got {}", rotated, head,
         rope);
  const int64_t q_latent = whole_or(f, attention + "q_lora_rank", 0);
  j["num_key_value_heads"] = j["num_attention_heads"];
  j["kv_lora_rank"] = f.whole(attention + "kv_lora_rank");
  j["q_lora_rank"] = q_latent != 0 ? json(q_latent) : json();
  j["qk_nope_head_dim"] = head - rope;
  j["qk_rope_head_dim"] = rope;
  j["v_head_dim"] = f.whole(attention + "value_length" + of);
  j["rope_interleave"] = true;
  // The layers of multi-token prediction follow the others and do not change the logits.
  const std::string further = arch + "nextn_predict_layers";
  const int64_t layers = j["num_hidden_layers"], nextn = whole_or(f, further, 0);
  if (nextn < 0 || nextn >= layers)
    fail(f.where, "expected {} below the {} layers, got {}", further, layers, nextn);
  j["num_hidden_layers"] = layers - nextn;
  read_latent_scaling(j["rope_parameters"], f, arch);
}

// --- writing ---

void check_experts(const ModelConfig& c, HfType type) {
  if (type != HfType::qwen3_moe) return;
  if (!c.moe.norm_topk)
    fail("gguf",
         "qwen3moe in GGUF must divide the weights of a token's experts by their sum (norm_topk)");
  for (int64_t i = 0; i < c.layers; ++i)
    if (!is_expert_layer(c.moe, i))
      fail("gguf", "qwen3moe in GGUF must have experts in every layer, got none in layer {}", i);
}

void check_latents(const ModelConfig& c) {
  if (c.norm_eps != latent_norm_eps)
    fail("gguf", "expected a norm_eps of {}, that of latents, for deepseek2 in GGUF, got {}",
         latent_norm_eps, c.norm_eps);
  // llama.cpp knows by these that a model is DeepSeek-V2-Lite or a relative, which have no
  // q_latent.
  const bool lite = c.layers == 26 || c.layers == 27 || (c.layers == 48 && c.vocab == 128256);
  if (lite && c.mla.q_latent)
    fail("gguf", "deepseek2 with {} layers in GGUF cannot have a q_latent, got {}", c.layers,
         c.mla.q_latent);
  if (c.rope_scaling == RopeScaling::linear)
    fail("gguf", "deepseek2 in GGUF cannot use the rope_scaling linear");
  if (c.rope_scaling == RopeScaling::yarn &&
      !(c.mla.yarn_mscale_all > 0 && c.mla.yarn_mscale == c.mla.yarn_mscale_all))
    fail("gguf",
         "deepseek2 with yarn in GGUF must have equal yarn_mscale and yarn_mscale_all above 0, got "
         "{} and {}",
         c.mla.yarn_mscale, c.mla.yarn_mscale_all);
  if (c.moe && c.moe.expert_groups == c.moe.experts && c.moe.top_groups < c.moe.expert_groups)
    fail("gguf", "deepseek2 in GGUF must have several experts in a group, got {} groups of one",
         c.moe.expert_groups);
}

void put_experts(GgufKeys& keys, const ModelConfig& c, HfType type, const std::string& arch) {
  const MoeConfig& m = c.moe;
  if (type == HfType::deepseek_v3) {
    keys.set(arch + "leading_dense_block_count", m ? m.first_dense_layers : c.layers);
    keys.set(arch + "expert_feed_forward_length", m ? m.expert_hidden : c.hidden);
    keys.set(arch + "expert_shared_count", m.shared_experts);
  }
  if (!m) return;
  keys.set(arch + "expert_count", m.experts);
  keys.set(arch + "expert_used_count", m.top_k);
  if (type == HfType::qwen3_moe) keys.set(arch + "expert_feed_forward_length", m.expert_hidden);
  if (type != HfType::deepseek_v3) return;
  keys.set(arch + "expert_weights_scale", m.router_scale);
  keys.set(arch + "expert_weights_norm", m.norm_topk);
  keys.set(arch + "expert_gating_func", sigmoid_gating);
  if (m.top_groups == m.expert_groups) return;  // any expert may be chosen
  keys.set(arch + "expert_group_count", m.expert_groups);
  keys.set(arch + "expert_group_used_count", m.top_groups);
}

void put_latents(GgufKeys& keys, const ModelConfig& c, const std::string& arch) {
  const std::string attention = arch + "attention.";
  keys.set(attention + "head_count_kv", int64_t(1));  // heads share the cached latent
  keys.set(attention + "q_lora_rank", c.mla.q_latent);
  keys.set(attention + "kv_lora_rank", c.mla.kv_latent);
  keys.set(attention + "key_length", c.mla.kv_latent + c.mla.rope_dim);
  keys.set(attention + "value_length", c.mla.kv_latent);
  keys.set(attention + "key_length_mla", c.head_dim);
  keys.set(attention + "value_length_mla", c.v_head_dim ? c.v_head_dim : c.head_dim);
  // From the decimal text of the float, as llama.cpp's converter computes it.
  if (c.rope_scaling == RopeScaling::yarn)
    keys.set(arch + "rope.scaling.yarn_log_multiplier",
             float(0.1 * std::stod(fmt::format("{}", c.mla.yarn_mscale_all))));
}

}  // namespace hearth::inline model
