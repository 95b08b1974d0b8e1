// Layouts of llamas with experts: mixtral and qwen3_moe.
#include <algorithm>

#include "model/files/hf_keys.h"
#include "model/layer_spec.h"

namespace hearth::inline model {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

// The layers with experts: every decoder_sparse_step-th one, unless mlp_only_layers lists it.
std::string read_expert_layers(const ModelConfig& c, const Keys& k) {
  const int64_t step = k.get<int64_t>("decoder_sparse_step", 1);
  if (step < 1) fail(k.where, "expected decoder_sparse_step of 1 or more, got {}", step);
  std::string pattern;
  for (int64_t i = 0; i < c.layers; ++i) pattern += (i + 1) % step ? 'D' : 'E';
  if (!k.has("mlp_only_layers")) return pattern;
  const json& dense = k.j.at("mlp_only_layers");
  if (!dense.is_array())
    fail(k.where, "expected mlp_only_layers to be a list, got {}", in_quotes(dense.dump()));
  for (const json& layer : dense) {
    if (!layer.is_number_integer() || layer < 0 || layer >= c.layers)
      fail(k.where, "expected mlp_only_layers from 0 to {}, got {}", c.layers - 1, layer.dump());
    pattern[layer.get<size_t>()] = 'D';
  }
  return pattern;
}

int64_t read_experts(const Keys& k, const char* key, int64_t absent) {
  const int64_t n = k.get<int64_t>(key, absent);
  if (n < 1 || n > most_experts)
    fail(k.where, "expected {} between 1 and {}, got {}", key, most_experts, n);
  return n;
}

}  // namespace

ModelConfig read_moe(const Keys& k, HfType type) {
  const bool mixtral = type == HfType::mixtral;
  LlamaDefaults defaults;
  if (mixtral) defaults.eps = 1e-5f, defaults.rope.theta = 1e6;
  ModelConfig c = read_llama_sizes(k, defaults);
  read_rope(c, k, defaults.rope);
  k.only("router_jitter_noise", 0.0);
  if (mixtral) {
    c.kv_heads = k.get<int64_t>("num_key_value_heads", 8);
    c.qkv_bias = c.out_bias = false;
    c.window = k.get_or_zero<int64_t>("sliding_window", 0);
    c.moe.experts = read_experts(k, "num_local_experts", 8);
    c.moe.top_k = k.get<int64_t>("num_experts_per_tok", 2);
    return c;
  }
  c.kv_heads = k.get<int64_t>("num_key_value_heads", 4);
  c.qk_norm = QkNorm::before_rope;
  if (k.get<bool>("use_sliding_window", false))
    c.window = k.get_or_zero<int64_t>("sliding_window", 4096);
  // transformers 5 writes the second name.
  c.moe.experts = read_experts(k, k.has("num_experts") ? "num_experts" : "num_local_experts", 128);
  c.moe.top_k = k.get<int64_t>("num_experts_per_tok", 8);
  c.moe.expert_hidden = k.get<int64_t>("moe_intermediate_size", 768);
  c.moe.norm_topk = k.get<bool>("norm_topk_prob", false);
  c.moe.expert_pattern = read_expert_layers(c, k);
  return c;
}

ordered_json write_moe(const ModelConfig& c, HfType type) {
  ordered_json j = write_llama_sizes(c);
  const ordered_json window = c.window > 0 ? ordered_json(c.window) : ordered_json();
  j.erase("mlp_bias");
  j["num_experts_per_tok"] = c.moe.top_k;
  j["sliding_window"] = window;
  if (type == HfType::mixtral) {
    j.erase("attention_bias");
    j["intermediate_size"] = c.moe.expert_hidden;
    j["num_local_experts"] = c.moe.experts;
    return j;
  }
  j["use_sliding_window"] = c.window > 0;
  j["num_experts"] = c.moe.experts;
  j["moe_intermediate_size"] = c.moe.expert_hidden;
  j["norm_topk_prob"] = c.moe.norm_topk;
  j["decoder_sparse_step"] = 1;
  ordered_json dense = ordered_json::array();
  for (int64_t i = 0; i < c.layers; ++i)
    if (!is_expert_layer(c.moe, i)) dense.push_back(i);
  j["mlp_only_layers"] = dense;
  return j;
}

}  // namespace hearth::inline model
