// The configs of Hugging Face's families: published ones, defaults, layouts that are kept, and keys
// that are refused by name.
#include <gtest/gtest.h>

#include "model/decoder.h"
#include "model/files/folder.h"
#include "model/layer_spec.h"
#include "unit/family_keys.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

using nlohmann::json;
using test::alternating;
using test::deepseek_keys, test::gemma_keys, test::llama_keys, test::neox_keys;
using test::error_of;
using test::expect_error;

ModelConfig read(const json& j) { return config_from_hf_json(j, "config.json"); }
std::string model_type_of(const ModelConfig& c) {
  return json::parse(hf_config_json(c, DType::f32, -1, -1)).at("model_type");
}

constexpr const char* qwen25_05b = R"({
  "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
  "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
  "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 21,
  "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})";
constexpr const char* deepseek_v3 = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3,
  "hidden_act": "silu", "hidden_size": 7168, "initializer_range": 0.02,
  "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
  "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
  "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
  "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
  "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
  "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
  "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc",
  "torch_dtype": "bfloat16", "use_cache": true, "v_head_dim": 128, "vocab_size": 129280})";
constexpr const char* pythia_160m = R"({
  "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0,
  "hidden_act": "gelu", "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
  "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "model_type": "gpt_neox",
  "num_attention_heads": 12, "num_hidden_layers": 12, "rotary_emb_base": 10000,
  "rotary_pct": 0.25, "tie_word_embeddings": false, "torch_dtype": "float16", "use_cache": true,
  "use_parallel_residual": true, "vocab_size": 50304})";
constexpr const char* olmo2_1b = R"({
  "architectures": ["Olmo2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
  "intermediate_size": 8192, "max_position_embeddings": 4096, "model_type": "olmo2",
  "num_attention_heads": 16, "num_hidden_layers": 16, "num_key_value_heads": 16,
  "pad_token_id": 100277, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 500000,
  "tie_word_embeddings": false, "torch_dtype": "float32", "vocab_size": 100352})";
constexpr const char* gemma3_270m = R"({
  "_sliding_window_pattern": 6, "architectures": ["Gemma3ForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "attn_logit_softcapping": null, "bos_token_id": 2, "eos_token_id": 1,
  "final_logit_softcapping": null, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
  "hidden_size": 640, "initializer_range": 0.02, "intermediate_size": 2048,
  "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention",
  "sliding_attention", "sliding_attention", "full_attention", "sliding_attention",
  "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
  "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
  "sliding_attention", "sliding_attention", "full_attention"],
  "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
  "num_hidden_layers": 18, "num_key_value_heads": 1, "pad_token_id": 0,
  "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000.0,
  "rope_scaling": null, "rope_theta": 1000000.0, "sliding_window": 512,
  "torch_dtype": "bfloat16", "use_bidirectional_attention": false, "use_cache": true,
  "vocab_size": 262144})";
constexpr const char* phi3_mini = R"({
  "architectures": ["Phi3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 1, "embd_pdrop": 0.0, "eos_token_id": 32000, "hidden_act": "silu",
  "hidden_size": 3072, "initializer_range": 0.02, "intermediate_size": 8192,
  "max_position_embeddings": 4096, "model_type": "phi3", "num_attention_heads": 32,
  "num_hidden_layers": 32, "num_key_value_heads": 32, "original_max_position_embeddings": 4096,
  "pad_token_id": 32000, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": null,
  "rope_theta": 10000.0, "sliding_window": 2047, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 32064})";

TEST(FamilyConfig, CountsTheParametersOfPublishedModels) {
  const auto counts = [](const char* text, int64_t params, const char* type) {
    const ModelConfig c = read(json::parse(text));
    EXPECT_EQ(count_params(c), params) << type;
    EXPECT_EQ(model_type_of(c), type);
  };
  counts(qwen25_05b, 494'032'768, "qwen2");
  counts(pythia_160m, 162'322'944, "gpt_neox");
  counts(olmo2_1b, 1'484'916'736, "olmo2");
  counts(gemma3_270m, 268'098'176, "gemma3_text");
  counts(phi3_mini, 3'821'079'552, "phi3");
}

TEST(FamilyConfig, GemmaHasTwoRopes) {
  const ModelConfig c = read(json::parse(gemma3_270m));
  EXPECT_EQ(c.embed_scale, 25.298221f);
  EXPECT_EQ(c.score_scale, 0);  // 1 / sqrt(head_dim)
  const std::vector<LayerSpec> layers = layer_specs(c);
  EXPECT_TRUE(layers[4].rope_local);
  EXPECT_EQ(layers[4].window, 512);
  EXPECT_FALSE(layers[5].rope_local);
  EXPECT_EQ(layers[5].window, 0);
  json old = json::parse(gemma3_270m), fresh = old;
  old.erase("layer_types");  // every sixth is full
  EXPECT_TRUE(read(old) == c);
  for (const char* key : {"rope_theta", "rope_local_base_freq", "rope_scaling"}) fresh.erase(key);
  fresh["rope_parameters"] = {
      {"full_attention", {{"rope_type", "default"}, {"rope_theta", 1e6}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  EXPECT_TRUE(read(fresh) == c);
  fresh["rope_parameters"]["full_attention"] = {
      {"rope_type", "linear"}, {"rope_theta", 1e6}, {"factor", 8.0}};
  EXPECT_EQ(read(fresh).rope_scaling, RopeScaling::linear);
  EXPECT_EQ(layer_rope_tables(read(fresh), 8).back().config.rope_scaling, RopeScaling::none);
}

TEST(FamilyConfig, DefaultsAreThoseOfTransformers) {
  json j = llama_keys("mistral");
  EXPECT_EQ(read(j).window, 4096);
  j = llama_keys("smollm3");
  for (const char* key : {"rope_theta", "tie_word_embeddings"}) j.erase(key);
  j["num_hidden_layers"] = 5;
  EXPECT_EQ(read(j).rope_theta, 2e6);
  EXPECT_TRUE(read(j).tied);
  EXPECT_EQ(read(j).rope_pattern, "RRRNR");
  j = gemma_keys("gemma2");
  EXPECT_EQ(read(j).attention_softcap, 50);
  EXPECT_EQ(read(j).logit_softcap, 30);
  EXPECT_EQ(read(j).window_pattern, "SL");
  EXPECT_EQ(read(j).score_scale, 1 / 16.f);
  j = llama_keys("mixtral");
  j.erase("rope_theta");
  EXPECT_EQ(read(j).rope_theta, 1e6);
  EXPECT_EQ(read(j).moe.experts, 8);
  EXPECT_EQ(read(j).moe.top_k, 2);
  EXPECT_TRUE(read(j).moe.norm_topk);
  j = llama_keys("qwen3_moe");
  EXPECT_EQ(read(j).moe.experts, 128);
  EXPECT_EQ(read(j).moe.top_k, 8);
  EXPECT_EQ(read(j).moe.expert_hidden, 768);
  EXPECT_FALSE(read(j).moe.norm_topk);
  j["num_local_experts"] = 9, j["decoder_sparse_step"] = 2;
  EXPECT_EQ(read(j).moe.experts, 9);  // as transformers 5 names them
  EXPECT_EQ(read(j).moe.expert_pattern, "DED");
  j = neox_keys();
  j.erase("rotary_pct");
  EXPECT_EQ(read(j).rotary, 0.25f);
}

// A llama whose files are those of another family keeps them.
TEST(FamilyConfig, ALayoutIsKeptWhereItChangesTheFiles) {
  json j = llama_keys("phi3");
  const ModelConfig phi = read(j);
  EXPECT_EQ(phi.layout, "phi3");
  EXPECT_EQ(model_type_of(phi), "phi3");
  ModelConfig changed = phi;
  changed.qk_norm = QkNorm::before_rope;  // which phi3 has not
  EXPECT_EQ(model_type_of(changed), "qwen3");
  j["partial_rotary_factor"] = 0.6;
  EXPECT_EQ(read(j).layout, "");  // no other family turns a part of a head so
  EXPECT_EQ(read(llama_keys("llama")).layout, "");
  // transformers' own pad_token_id of phi3 is beyond a small vocabulary.
  const json written = json::parse(hf_config_json(phi, DType::f32, -1, -1));
  EXPECT_TRUE(written.at("pad_token_id").is_null());
  ModelConfig bad = phi;
  bad.layout = "mamba";
  expect_error(error_of([&] { bad.resolve(); }), "expected a layout among gpt2, llama");
}

TEST(FamilyConfig, ANamedLayoutOfOurOwnIsKept) {
  ModelConfig c = read(llama_keys("llama"));
  EXPECT_EQ(model_type_of(c), "llama");
  c.layout = "hearth";
  EXPECT_EQ(model_type_of(c), "hearth");
  EXPECT_EQ(read(json::parse(hf_config_json(c, DType::f32, -1, -1))).layout, "hearth");
}

// Published files of Gemma 1 say gelu; transformers 4, for which they were written, computed the
// tanh form. What transformers 5 writes means what it says.
TEST(FamilyConfig, TheActivationOfAnOldGemmaIsTheTanhForm) {
  json j = gemma_keys("gemma");
  const auto act = [&](const char* version, const json& hidden_act, const json& hidden_activation) {
    j["transformers_version"] = version, j["hidden_act"] = hidden_act;
    j["hidden_activation"] = hidden_activation;
    return read(j).act;
  };
  EXPECT_EQ(act("4.38.0.dev0", "gelu", nullptr), Act::geglu_tanh);
  EXPECT_EQ(act("4.40.0", "gelu", "gelu_pytorch_tanh"), Act::geglu_tanh);
  EXPECT_EQ(act("4.40.0", "gelu", "gelu"), Act::geglu);
  EXPECT_EQ(act("4.50.0", "gelu_pytorch_tanh", nullptr), Act::geglu_tanh);
  EXPECT_EQ(act("5.0.0", "gelu", nullptr), Act::geglu);
  EXPECT_EQ(act("5.0.0", "gelu_pytorch_tanh", nullptr), Act::geglu_tanh);
  j.erase("transformers_version"), j.erase("hidden_activation"), j["hidden_act"] = "gelu";
  EXPECT_EQ(read(j).act, Act::geglu);
}

TEST(FamilyConfig, ReadsDeepseek) {
  ModelConfig c = read(json::parse(deepseek_v3));
  EXPECT_EQ(c.mla, (MlaConfig{512, 1536, 128, 64, 1, 1}));
  EXPECT_EQ(c.head_dim, 192);
  EXPECT_EQ(c.v_head_dim, 128);
  EXPECT_EQ(c.rope_pairs, RopePairs::interleaved);
  EXPECT_EQ(rope_magnitude(c), 1);
  EXPECT_NEAR(attention_score_scale(c, 192), 0.1352337, 1e-6);
  EXPECT_EQ(c.moe.first_dense_layers, 3);
  EXPECT_EQ(c.moe.experts, 256);
  EXPECT_EQ(c.moe.router_scale, 2.5f);
  EXPECT_TRUE(c.moe.router_bias);
  EXPECT_EQ(model_type_of(c), "deepseek_v3");
  EXPECT_TRUE(read(json::parse(hf_config_json(c, DType::bf16, 0, 1))) == c);
  EXPECT_EQ(c.mtp, 1);
  // The module: attention 187,107,328, eh_proj 102,760,448, nine experts 396,361,728, its router
  // with biases 1,835,264 and five norms 35,840.
  EXPECT_EQ(count_active_params(c), 37552297472 + 688100608);
  c.mtp = 0;
  EXPECT_EQ(count_active_params(c), 37552297472);  // of 671B
}

TEST(FamilyConfig, RefusesWhatWouldChangeTheNumbers) {
  const auto refused = [](json j, const char* key, const json& value, std::string_view part) {
    j[key] = value;
    expect_error(error_of([&] { read(j); }), part);
  };
  const json phi = json::parse(phi3_mini), gemma3 = json::parse(gemma3_270m);
  refused(phi, "rope_scaling", {{"type", "yarn"}, {"factor", 4.0}},
          "expected rope_type to be default or longrope for phi3, got \"yarn\"");
  refused(phi, "attention_bias", true, "expected attention_bias to be false");
  refused(phi, "partial_rotary_factor", 1.5, "expected a partial_rotary_factor above 0");
  refused(gemma3, "attn_logit_softcapping", 50.0, "expected attn_logit_softcapping to be 0.0");
  refused(gemma3, "use_bidirectional_attention", true, "use_bidirectional_attention to be false");
  refused(gemma3, "query_pre_attn_scalar", 0, "expected query_pre_attn_scalar of 1 or more");
  refused(gemma3, "rope_parameters", {{"rope_theta", 1e4}},
          "expected full_attention and sliding_attention");
  refused(gemma3, "rope_parameters",
          {{"full_attention", {{"rope_theta", 1e6}}},
           {"sliding_attention", {{"rope_type", "linear"}, {"factor", 2.0}}}},
          "expected rope_type to be \"default\"");
  refused(gemma_keys("gemma"), "hidden_activation", "gelu", "expected hidden_activation to be");
  refused(json::parse(qwen25_05b), "partial_rotary_factor", 0.5, "partial_rotary_factor to be 1.0");
  refused(llama_keys("mistral"), "layer_types", alternating,
          "expected layer_types that all agree with sliding_window");
  refused(llama_keys("smollm3"), "no_rope_layers", {1, 2, 1}, "expected no_rope_layers of 0 and 1");
  refused(llama_keys("smollm3"), "no_rope_layers", {1}, "expected no_rope_layers to list 3 layers");
  refused(json::parse(pythia_160m), "hidden_act", "gelu_fast", "expected hidden_act to be one of");
  const json mixtral = llama_keys("mixtral"), moe = llama_keys("qwen3_moe");
  refused(mixtral, "num_local_experts", 0, "expected num_local_experts between 1 and 1024, got 0");
  refused(mixtral, "num_experts_per_tok", 9, "expected top_k between 1 and 8 of 8 experts, got 9");
  refused(mixtral, "router_jitter_noise", 0.1, "expected router_jitter_noise to be 0.0");
  refused(moe, "mlp_only_layers", {3}, "expected mlp_only_layers from 0 to 2, got 3");
  refused(moe, "mlp_only_layers", "none", "expected mlp_only_layers to be a list");
  refused(moe, "mlp_only_layers", {0, 1, 2}, "expected experts in one of the 3 layers");
  refused(moe, "decoder_sparse_step", 0, "expected decoder_sparse_step of 1 or more, got 0");
  const json deep = deepseek_keys();
  for (const char* type : {"linear", "llama3"})
    refused(deep, "rope_scaling", {{"type", type}, {"factor", 4.0}, {"mscale_all_dim", 1.0}},
            "expected mscale_all_dim to be 0.0, got 1.0: not supported");
  refused(deep, "num_key_value_heads", 2, "expected num_key_value_heads to be 6");
  refused(deep, "scoring_func", "softmax", "expected scoring_func to be \"sigmoid\"");
  refused(deep, "topk_method", "greedy", "expected topk_method to be \"noaux_tc\"");
  refused(deep, "moe_layer_freq", 2, "expected moe_layer_freq to be 1");
  refused(deep, "kv_lora_rank", 0, "expected kv_lora_rank between 1 and 1048576, got 0");
  refused(deep, "qk_rope_head_dim", 5, "latent attention needs an even rope_dim (got 5)");
  refused(deep, "n_group", 5, "expected expert_groups that divide 12 experts, got 5");
  refused(deep, "first_k_dense_replace", -1, "expected first_k_dense_replace of 0 or more");
  refused(json::parse(qwen25_05b), "is_causal", false, "expected is_causal to be true");
  refused(json::parse(qwen25_05b), "quantization_config", {{"bits", 4}}, "quantization_config");
}

}  // namespace
}  // namespace hearth
