// config.json as the hub has it: read as the model cards say, refused by key where a value would
// change the numbers.
#include "model/decoder.h"
#include "model/files/folder.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

using nlohmann::json;
using test::error_of;
using test::expect_error;

std::string model_type_of(const ModelConfig& c) {
  return json::parse(hf_config_json(c, DType::f32, -1, -1)).at("model_type");
}

constexpr const char* hub_gpt2 = R"({
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
  "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
  "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
  "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null,
  "summary_first_dropout": 0.1, "summary_proj_to_labels": true, "summary_type": "cls_index",
  "summary_use_proj": true, "task_specific_params": {"text-generation": {"do_sample": true,
  "max_length": 50}}, "vocab_size": 50257})";

constexpr const char* hub_llama = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu",
  "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
  "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0,
  "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
  "rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": true,
  "torch_dtype": "bfloat16", "transformers_version": "4.45.0.dev0", "use_cache": true,
  "vocab_size": 128256})";

constexpr const char* hub_qwen3 = R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
  "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
  "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
  "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})";

ModelConfig read(const json& j) { return config_from_hf_json(j, "config.json"); }

TEST(HubConfig, Gpt2) {
  const ModelConfig c = read(json::parse(hub_gpt2));
  EXPECT_EQ(count_params(c), 124'439'808);
  EXPECT_EQ(c.act, Act::gelu_tanh);
  EXPECT_FLOAT_EQ(c.dropout_embed, 0.1f);
  ModelConfig without = c;
  without.dropout_embed = without.dropout_attention = without.dropout_residual = 0;
  EXPECT_TRUE(without == preset("gpt2"));
}

TEST(HubConfig, Llama32) {
  const ModelConfig c = read(json::parse(hub_llama));
  EXPECT_EQ(count_params(c), 1'235'814'400);
  EXPECT_EQ(c.rope_scaling, RopeScaling::llama3);
  EXPECT_EQ(c.rope_factor, 32);
  EXPECT_EQ(c.rope_context, 8192);
  EXPECT_EQ(c.rope_theta, 5e5);
  EXPECT_EQ(c.norm_eps, 1e-5f);
  EXPECT_EQ(model_type_of(c), "llama");
}

TEST(HubConfig, Qwen3) {
  const ModelConfig c = read(json::parse(hub_qwen3));
  EXPECT_EQ(count_params(c), 596'049'920);
  EXPECT_EQ(c.qk_norm, QkNorm::before_rope);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.window, 0);
  EXPECT_EQ(c.rope_theta, 1e6);
  EXPECT_EQ(model_type_of(c), "qwen3");
}

TEST(HubConfig, RopeParametersStandForBothOldKeys) {
  const ModelConfig old = read(json::parse(hub_llama));
  json j = json::parse(hub_llama);
  j["rope_parameters"] = j["rope_scaling"];
  j["rope_parameters"]["rope_theta"] = j["rope_theta"];
  EXPECT_TRUE(read(j) == old);  // all three
  j.erase("rope_theta");
  j.erase("rope_scaling");
  EXPECT_TRUE(read(j) == old);
  j["rope_theta"] = 1e4;
  expect_error(error_of([&] { read(j); }), "expected the earlier rope_theta 10000, got 500000");
  j.erase("rope_theta");
  j["rope_scaling"] = {{"type", "linear"}, {"factor", 2}};
  expect_error(error_of([&] { read(j); }), "rope_parameters] expected the same as rope_scaling");
}

TEST(HubConfig, SlidingWindows) {
  json j = json::parse(hub_qwen3);
  j["use_sliding_window"] = true;
  EXPECT_EQ(read(j).window, 0);  // no size
  j["sliding_window"] = 4096;
  EXPECT_EQ(read(j).window, 0);  // from layer 28 on
  j["max_window_layers"] = 0;
  EXPECT_EQ(read(j).window, 4096);
  EXPECT_EQ(read(j).window_pattern, "S");
  j["max_window_layers"] = 21;
  EXPECT_EQ(read(j).window_pattern, std::string(21, 'L') + std::string(7, 'S'));
  j["layer_types"] = std::vector<std::string>(28, "sliding_attention");
  j["layer_types"][0] = "linear_attention";
  expect_error(error_of([&] { read(j); }), "expected layer_types of full_attention");
}

TEST(HubConfig, AMisspelledKeyIsNamed) {
  const auto renamed = [](const char* text, const char* key, const char* to) {
    json j = json::parse(text);
    j[to] = j.at(key);
    j.erase(key);
    return error_of([&] { read(j); });
  };
  expect_error(renamed(hub_llama, "rope_theta", "rope_thta"),
               "config.json] expected a known key, got \"rope_thta\"; did you mean rope_theta?");
  expect_error(renamed(hub_llama, "rms_norm_eps", "rms_norm_epsilon"),
               "did you mean rms_norm_eps?");
  expect_error(renamed(hub_gpt2, "layer_norm_epsilon", "layer_norm_eps"),
               "did you mean layer_norm_epsilon?");
  expect_error(renamed(hub_qwen3, "head_dim", "head_dims"), "did you mean head_dim?");
  json j = json::parse(hub_llama);
  j["hearth_confg"] = json::object();
  expect_error(error_of([&] { read(j); }), "did you mean hearth_config?");
  // A key that has its place is no misspelling of another, and files have many that we ignore.
  j = json::parse(hub_llama);
  j["rope_thetas"] = 1, j["attention_type"] = "x", j["_head_dims"] = 1;
  EXPECT_TRUE(read(j) == read(json::parse(hub_llama)));
}

TEST(HubConfig, RefusesWhatWouldChangeTheNumbers) {
  const auto refused = [](const char* text, const char* key, const json& value,
                          std::string_view part) {
    json j = json::parse(text);
    j[key] = value;
    expect_error(error_of([&] { read(j); }), part);
  };
  refused(hub_gpt2, "activation_function", "relu", "expected activation_function to be one of");
  refused(hub_gpt2, "scale_attn_weights", false, "expected scale_attn_weights to be true");
  refused(hub_gpt2, "scale_attn_by_inverse_layer_idx", true, "scale_attn_by_inverse_layer_idx");
  refused(hub_gpt2, "n_head", 7, "expected heads to divide dim 768, got 7");
  refused(hub_gpt2, "n_layer", 1'000'000'000, "expected n_layer between 1 and 10000");
  refused(hub_llama, "hidden_act", "quick_gelu", "expected hidden_act to be one of");
  refused(hub_llama, "partial_rotary_factor", 0.5, "expected partial_rotary_factor to be 1.0");
  refused(hub_llama, "quantization_config", json::object(), "quantization_config");
  refused(hub_llama, "rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}},
          "expected rope_type to be default, linear, llama3, yarn or longrope, got \"dynamic\"");
  refused(hub_llama, "rope_scaling",
          {{"rope_type", "yarn"}, {"factor", 4.0}, {"attention_factor", 1.0}},
          "expected attention_factor");
  refused(hub_llama, "rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}}, "low_freq_factor");
  refused(hub_llama, "max_position_embeddings", (int64_t(1) << 31) + 1,
          "expected context between 1 and 2^31");
  refused(hub_llama, "hidden_size", "2048", "expected a whole number");
  refused(hub_llama, "model_type", "mamba", "expected model_type to be one of gpt2, llama, qwen2");
  refused(hub_llama, "hearth_config", {{"norm_gain", false}},
          "expected no contradiction to the keys of llama");
  refused(hub_llama, "hearth_config", {{"dropout_mlq", 0.5}}, "the nearest is dropout_mlp");
  json j = json::parse(hub_llama);
  j.erase("vocab_size");
  expect_error(error_of([&] { read(j); }), "the key vocab_size is missing");
  expect_error(error_of([&] {
                 read(json{{"model_type", "hearth"}});
               }),
               "the key hearth_config is missing");
}

}  // namespace
}  // namespace hearth
