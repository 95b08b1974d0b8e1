// The layout deepseek_v3: latent attention, and experts with a sigmoid router, selection biases and
// groups after the first layers; modules of multi-token prediction are layers after the last.
#include "model/files/hf_keys.h"
#include "model/layer_spec.h"

namespace hearth::inline model {

using nlohmann::ordered_json;

namespace {

int64_t read_width(const Keys& k, const char* key, int64_t absent) {
  const int64_t n = k.get<int64_t>(key, absent);
  if (n < 1 || n > most_latent)
    fail(k.where, "expected {} between 1 and {}, got {}", key, most_latent, n);
  return n;
}

void read_latents(ModelConfig& c, const Keys& k) {
  const int64_t keys = k.get<int64_t>("num_key_value_heads", c.heads);
  if (keys != c.heads)
    fail(k.where, "expected num_key_value_heads to be {}, the number of heads, got {}", c.heads,
         keys);
  c.kv_heads = 0, c.head_dim = 0;  // head_dim in these files is the width of the rotated part
  c.mla.kv_latent = read_width(k, "kv_lora_rank", 512);
  if (!k.j.contains("q_lora_rank") || k.has("q_lora_rank"))
    c.mla.q_latent = read_width(k, "q_lora_rank", 1536);
  c.mla.nope_dim = read_width(k, "qk_nope_head_dim", 128);
  c.mla.rope_dim = read_width(k, "qk_rope_head_dim", 64);
  c.v_head_dim = read_width(k, "v_head_dim", 128);
  const bool pairs = k.get<bool>("rope_interleave", true);
  c.rope_pairs = pairs ? RopePairs::interleaved : RopePairs::half;
}

void read_modules(ModelConfig& c, const Keys& k) {
  constexpr const char* key = "num_nextn_predict_layers";
  c.mtp = k.get<int64_t>(key, 0);
  if (c.mtp < 0 || c.mtp > most_mtp)
    fail(k.where, "expected {} between 0 and {}, got {}", key, most_mtp, c.mtp);
}

void read_routed(ModelConfig& c, const Keys& k) {
  const int64_t dense = k.get<int64_t>("first_k_dense_replace", 3);
  if (dense < 0) fail(k.where, "expected first_k_dense_replace of 0 or more, got {}", dense);
  if (dense >= c.layers) return;
  k.only("moe_layer_freq", int64_t(1));
  k.only("scoring_func", std::string("sigmoid"));
  k.only("topk_method", std::string("noaux_tc"));
  MoeConfig& m = c.moe;
  m.first_dense_layers = dense;
  m.experts = read_width(k, "n_routed_experts", 256);
  m.top_k = read_width(k, "num_experts_per_tok", 8);
  m.expert_hidden = read_width(k, "moe_intermediate_size", 2048);
  m.shared_experts = read_width(k, "n_shared_experts", 1);
  m.router = Router::sigmoid, m.router_bias = true;
  m.norm_topk = k.get<bool>("norm_topk_prob", true);
  m.router_scale = k.get<float>("routed_scaling_factor", 2.5f);
  m.expert_groups = read_width(k, "n_group", 8);
  m.top_groups = read_width(k, "topk_group", 4);
}

}  // namespace

ModelConfig read_deepseek(const Keys& k) {
  ModelConfig c = read_llama_sizes(k);
  read_latents(c, k);
  read_rope(c, k);
  read_modules(c, k);
  read_routed(c, k);
  return c;
}

ordered_json write_deepseek(const ModelConfig& c) {
  ordered_json j = write_llama_sizes(c);
  j.erase("mlp_bias");
  j.erase("head_dim");
  const MoeConfig& m = c.moe;
  j["kv_lora_rank"] = c.mla.kv_latent;
  j["q_lora_rank"] = c.mla.q_latent ? ordered_json(c.mla.q_latent) : ordered_json();
  j["qk_nope_head_dim"] = c.mla.nope_dim;
  j["qk_rope_head_dim"] = c.mla.rope_dim;
  j["v_head_dim"] = c.v_head_dim ? c.v_head_dim : c.head_dim;
  j["rope_interleave"] = c.rope_pairs == RopePairs::interleaved;
  j["num_nextn_predict_layers"] = c.mtp;
  j["first_k_dense_replace"] = m ? m.first_dense_layers : c.layers + c.mtp;
  if (!m) return j;
  j["n_routed_experts"] = m.experts;
  j["num_experts_per_tok"] = m.top_k;
  j["moe_intermediate_size"] = m.expert_hidden;
  j["n_shared_experts"] = m.shared_experts;
  j["norm_topk_prob"] = m.norm_topk;
  j["routed_scaling_factor"] = plain(m.router_scale);
  j["n_group"] = m.expert_groups;
  j["topk_group"] = m.top_groups;
  j["moe_layer_freq"] = 1;
  j["scoring_func"] = "sigmoid";
  j["topk_method"] = "noaux_tc";
  return j;
}

}  // namespace hearth::inline model
