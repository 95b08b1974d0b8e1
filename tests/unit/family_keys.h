// Small configs of Hugging Face's families with odd sizes, for tests of files and configs.
#pragma once

#include <nlohmann/json.hpp>

namespace hearth::test {

// Odd sizes; heads share keys.
inline nlohmann::json llama_keys(const char* type) {
  return {{"model_type", type},          {"vocab_size", 37},       {"max_position_embeddings", 64},
          {"hidden_size", 30},           {"num_hidden_layers", 3}, {"num_attention_heads", 6},
          {"num_key_value_heads", 2},    {"head_dim", 10},         {"intermediate_size", 26},
          {"hidden_act", "silu"},        {"rms_norm_eps", 1e-5},   {"rope_theta", 5e4},
          {"tie_word_embeddings", false}};
}

inline nlohmann::json gemma_keys(const char* type) {
  nlohmann::json j = llama_keys(type);
  j["tie_word_embeddings"] = true, j["rms_norm_eps"] = 1e-6;
  j.erase("hidden_act");
  j[j["model_type"] == "gemma" ? "hidden_act" : "hidden_activation"] = "gelu_pytorch_tanh";
  return j;
}

inline nlohmann::json neox_keys() {
  return {{"model_type", "gpt_neox"},    {"vocab_size", 41},        {"max_position_embeddings", 64},
          {"hidden_size", 40},           {"num_hidden_layers", 2},  {"num_attention_heads", 5},
          {"intermediate_size", 52},     {"hidden_act", "gelu"},    {"layer_norm_eps", 1e-5},
          {"rotary_pct", 0.5},           {"rotary_emb_base", 1000}, {"use_parallel_residual", true},
          {"tie_word_embeddings", false}};
}

// longrope on six of ten dims. Texts of up to 16 tokens use the short factors.
inline nlohmann::json long_rope_keys() {
  nlohmann::json j = llama_keys("phi3");
  j.update({{"partial_rotary_factor", 0.6},
            {"sliding_window", nullptr},
            {"original_max_position_embeddings", 16},
            {"rope_scaling",
             {{"type", "longrope"},
              {"short_factor", {1.0, 1.25, 3.0}},
              {"long_factor", {1.5, 7.0, 40.5}}}}});
  return j;
}

inline const nlohmann::json alternating = {"sliding_attention", "full_attention",
                                           "sliding_attention"};

inline const nlohmann::json qwen3_moe_keys = {
    {"num_experts", 6},           {"num_experts_per_tok", 3},
    {"moe_intermediate_size", 7}, {"norm_topk_prob", true},
    {"decoder_sparse_step", 1},   {"mlp_only_layers", nlohmann::json::array()},
    {"use_sliding_window", false}};

// All heads have keys; experts after the first layer.
inline nlohmann::json deepseek_keys() {
  nlohmann::json j = llama_keys("deepseek_v3");
  j.erase("head_dim");
  j.update({{"num_key_value_heads", 6},
            {"kv_lora_rank", 11},
            {"q_lora_rank", 9},
            {"qk_nope_head_dim", 7},
            {"qk_rope_head_dim", 4},
            {"v_head_dim", 5},
            {"rope_interleave", true},
            {"first_k_dense_replace", 1},
            {"n_routed_experts", 12},
            {"num_experts_per_tok", 3},
            {"moe_intermediate_size", 8},
            {"n_shared_experts", 2},
            {"norm_topk_prob", true},
            {"routed_scaling_factor", 2.5},
            {"n_group", 4},
            {"topk_group", 2},
            {"moe_layer_freq", 1},
            {"scoring_func", "sigmoid"},
            {"topk_method", "noaux_tc"}});
  return j;
}

}  // namespace hearth::test
