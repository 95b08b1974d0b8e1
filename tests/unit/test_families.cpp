// The families of Hugging Face folders: logits by their published formulas, tensors written back
// byte for byte, configs as the hub has them, and refusals by name.
#include "family_reference.h"

#include "formats/json.h"
#include "infer/engine.h"
#include "model/files/convert.h"
#include "model/files/folder.h"
#include "model/files/gguf_model.h"
#include "model/layer_spec.h"
#include "unit/model_run.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::error_of;
using test::expect_error;
using test::FamilyReference;
using test::TempDir;

struct Family {
  std::string name;
  json config;
};
void PrintTo(const Family& f, std::ostream* out) { *out << f.name; }

// Odd sizes; heads share keys.
json llama_keys(const char* type) {
  return {{"model_type", type},          {"vocab_size", 37},       {"max_position_embeddings", 64},
          {"hidden_size", 30},           {"num_hidden_layers", 3}, {"num_attention_heads", 6},
          {"num_key_value_heads", 2},    {"head_dim", 10},         {"intermediate_size", 26},
          {"hidden_act", "silu"},        {"rms_norm_eps", 1e-5},   {"rope_theta", 5e4},
          {"tie_word_embeddings", false}};
}

Family family(const char* name, json config, const json& more) {
  if (!more.is_null()) config.update(more);
  return {name, std::move(config)};
}

json gemma_keys(const char* type) {
  json j = llama_keys(type);
  j["tie_word_embeddings"] = true, j["rms_norm_eps"] = 1e-6;
  j.erase("hidden_act");
  j[j["model_type"] == "gemma" ? "hidden_act" : "hidden_activation"] = "gelu_pytorch_tanh";
  return j;
}

json neox_keys() {
  return {{"model_type", "gpt_neox"},    {"vocab_size", 41},        {"max_position_embeddings", 64},
          {"hidden_size", 40},           {"num_hidden_layers", 2},  {"num_attention_heads", 5},
          {"intermediate_size", 52},     {"hidden_act", "gelu"},    {"layer_norm_eps", 1e-5},
          {"rotary_pct", 0.5},           {"rotary_emb_base", 1000}, {"use_parallel_residual", true},
          {"tie_word_embeddings", false}};
}

const json alternating = {"sliding_attention", "full_attention", "sliding_attention"};

const json qwen3_moe_keys = {{"num_experts", 6},           {"num_experts_per_tok", 3},
                             {"moe_intermediate_size", 7}, {"norm_topk_prob", true},
                             {"decoder_sparse_step", 1},   {"mlp_only_layers", json::array()},
                             {"use_sliding_window", false}};

// All heads have keys; experts after the first layer.
json deepseek_keys() {
  json j = llama_keys("deepseek_v3");
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

std::vector<Family> families() {
  return {
      family("llama", llama_keys("llama"), {}),
      family("qwen2", llama_keys("qwen2"), {{"use_sliding_window", false}}),
      family("qwen2_window", llama_keys("qwen2"),
             {{"use_sliding_window", true},
              {"sliding_window", 5},
              {"tie_word_embeddings", true},
              {"layer_types", alternating}}),
      family("qwen3", llama_keys("qwen3"), {}),
      family("mistral", llama_keys("mistral"), {{"sliding_window", 4}}),
      family("mistral_full", llama_keys("mistral"), {{"sliding_window", nullptr}}),
      family("smollm3", llama_keys("smollm3"),
             {{"no_rope_layers", {1, 0, 1}}, {"tie_word_embeddings", true}}),
      family("smollm3_biases", llama_keys("smollm3"),
             {{"no_rope_layers", {0, 1, 1}}, {"attention_bias", true}, {"head_dim", 6}}),
      family("gpt_neox", neox_keys(), {}),
      family("gpt_neox_sequential", neox_keys(),
             {{"use_parallel_residual", false}, {"rotary_pct", 1.0}, {"hidden_act", "gelu_new"}}),
      family("gpt_neox_tied", neox_keys(),
             {{"attention_bias", false}, {"tie_word_embeddings", true}, {"rotary_pct", 0.75}}),
      family("olmo2", llama_keys("olmo2"), {}),
      family("olmo2_biases", llama_keys("olmo2"),
             {{"attention_bias", true}, {"num_key_value_heads", 6}}),
      family("gemma", gemma_keys("gemma"), {}),
      family("gemma2", gemma_keys("gemma2"),
             {{"query_pre_attn_scalar", 17},
              {"sliding_window", 5},
              {"layer_types", alternating},
              {"attn_logit_softcapping", 2.5},
              {"final_logit_softcapping", 4.0}}),
      family("gemma2_uncapped", gemma_keys("gemma2"),
             {{"query_pre_attn_scalar", 10},
              {"sliding_window", 5},
              {"layer_types", {"full_attention", "sliding_attention", "full_attention"}},
              {"attn_logit_softcapping", nullptr},
              {"final_logit_softcapping", nullptr}}),
      family("gemma3", gemma_keys("gemma3_text"),
             {{"query_pre_attn_scalar", 12},
              {"sliding_window", 4},
              {"layer_types", alternating},
              {"rope_local_base_freq", 100.0},
              {"final_logit_softcapping", 9.0}}),
      family("phi3", llama_keys("phi3"), {{"partial_rotary_factor", 0.6}, {"sliding_window", 7}}),
      family("phi3_plain", llama_keys("phi3"), {{"sliding_window", nullptr}}),
      family("mixtral", llama_keys("mixtral"),
             {{"num_local_experts", 5}, {"num_experts_per_tok", 2}, {"sliding_window", nullptr}}),
      family("mixtral_window", llama_keys("mixtral"),
             {{"num_local_experts", 3}, {"num_experts_per_tok", 1}, {"sliding_window", 6}}),
      family("qwen3_moe", llama_keys("qwen3_moe"), qwen3_moe_keys),
      family("deepseek_v3", deepseek_keys(), {}),
      family("deepseek_v3_biases", deepseek_keys(),
             {{"q_lora_rank", nullptr},
              {"attention_bias", true},
              {"first_k_dense_replace", 0},
              {"norm_topk_prob", false},
              {"n_group", 1},
              {"topk_group", 1}}),
      family("deepseek_v3_dense",
             [] {
               json j = deepseek_keys();
               for (const char* key :
                    {"n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
                     "n_shared_experts", "norm_topk_prob", "routed_scaling_factor", "n_group",
                     "topk_group", "moe_layer_freq", "scoring_func", "topk_method"})
                 j.erase(key);
               return j;
             }(),
             {{"first_k_dense_replace", 3}, {"tie_word_embeddings", true}}),
      family("qwen3_moe_some", llama_keys("qwen3_moe"),
             [] {
               json j = qwen3_moe_keys;
               j["mlp_only_layers"] = {0, 2}, j["norm_topk_prob"] = false;
               j["num_experts_per_tok"] = 1, j["attention_bias"] = true;
               return j;
             }()),
  };
}

std::vector<int32_t> some_tokens(int64_t vocab, int n) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(int32_t((i * i * 5 + i * 3 + 1) % vocab));
  return tokens;
}

class Families : public testing::TestWithParam<Family> {
 protected:
  static constexpr int T = 14;

  void SetUp() override {
    tokens_ = some_tokens(GetParam().config["vocab_size"], T);
    want_ = reference_.logits(tokens_);
    make_dirs(dir_ / "hub");
    write_file_atomic(dir_ / "hub" / "config.json", GetParam().config.dump());
    write_safetensors_model(dir_ / "hub", reference_.tensors());
  }
  void expect_logits(const fs::path& folder) {
    const test::BackendCase where{"cpu", [] { return make_cpu_backend(1); }, DType::f32};
    test::LoadedModel m(ModelSource::open(folder), where);
    std::vector<int32_t> positions;
    for (int i = 0; i < T; ++i) positions.push_back(i);
    std::vector<float> got = test::LogitsProgram(m, 1, T).run(tokens_, positions);
    if (const double cap = m.config.logit_softcap; cap > 0)
      for (float& x : got) x = float(cap * std::tanh(double(x) / cap));
    double far = 0, large = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double want = want_[i / size_t(m.config.vocab)][i % size_t(m.config.vocab)];
      far = std::max(far, std::abs(got[i] - want)), large = std::max(large, std::abs(want));
    }
    EXPECT_LT(far, 1e-5 * std::max(1.0, large));
    EXPECT_GT(large, 0.3);
  }

  FamilyReference reference_{GetParam().config};
  TempDir dir_;
  std::vector<int32_t> tokens_;
  std::vector<test::Vec> want_;
};

TEST_P(Families, ComputeTheirFormulas) { expect_logits(dir_ / "hub"); }

TEST_P(Families, AreWrittenBackByteForByte) {
  const auto backend = make_cpu_backend(1);
  const Converted done = convert_model({.from = dir_ / "hub", .to = dir_ / "back"}, *backend);
  EXPECT_EQ(done.model_type, GetParam().config["model_type"].get<std::string>());
  const Safetensors before(dir_ / "hub"), after(dir_ / "back");
  EXPECT_EQ(before.tensors().size(), after.tensors().size());
  for (const auto& [name, t] : before.tensors()) {
    const StoredTensor* other = after.find(name);
    ASSERT_TRUE(other) << name;
    EXPECT_EQ(t.shape, other->shape) << name;
    EXPECT_TRUE(std::ranges::equal(t.bytes, other->bytes)) << name;
  }
  const json written = read_json(dir_ / "back" / "config.json");
  for (const auto& [key, value] : GetParam().config.items()) {
    if (key == "attention_bias" && !written.contains(key)) continue;
    EXPECT_EQ(written.at(key), value) << key;
  }
  EXPECT_FALSE(written.contains("hearth_config")) << written["hearth_config"];
  EXPECT_TRUE(ModelSource::open(dir_ / "back").config() ==
              ModelSource::open(dir_ / "hub").config());
  expect_logits(dir_ / "back");
}

// The same model with its rotary pairs interleaved is written as the file has them.
TEST_P(Families, AreWrittenFromInterleavedPairs) {
  if (GetParam().config["model_type"] == "deepseek_v3") return;  // whose config names the pairs
  const ModelSource source = ModelSource::open(dir_ / "hub");
  ModelConfig c = source.config();
  const auto backend = make_cpu_backend(1);
  ParamStore plain(*backend, decoder_params(c), DType::f32);
  source.load(plain);
  c.rope_pairs = RopePairs::interleaved;
  json config = GetParam().config;
  config["hearth_config"] = {{"rope_pairs", "interleaved"}};
  write_file_atomic(dir_ / "hub" / "config.json", config.dump());
  const ModelSource turned = ModelSource::open(dir_ / "hub");
  ASSERT_TRUE(turned.config() == c);
  ParamStore store(*backend, decoder_params(c), DType::f32);
  turned.load(store);
  EXPECT_NE(store.values(Part::weight, "blocks.0.attn.qkv.weight"),
            plain.values(Part::weight, "blocks.0.attn.qkv.weight"));
  expect_logits(dir_ / "hub");
  make_dirs(dir_ / "back");
  write_safetensors_model(dir_ / "back", hf_tensors(c, store, DType::f32));
  const Safetensors before(dir_ / "hub"), after(dir_ / "back");
  for (const auto& [name, t] : before.tensors())
    EXPECT_TRUE(std::ranges::equal(t.bytes, after.at(name).bytes)) << name;
}

// --- GGUF ---

// Models as llama.cpp's architectures assume them.
std::vector<Family> gguf_families() {
  const json square = {{"num_attention_heads", 3}, {"num_key_value_heads", 1}};
  json seven = json::array();
  for (int i = 0; i < 7; ++i) seven.push_back(i == 5 ? "full_attention" : "sliding_attention");
  return {
      family("qwen2", llama_keys("qwen2"), {}),
      family("mistral", llama_keys("mistral"), {{"sliding_window", nullptr}}),
      family("smollm3", llama_keys("smollm3"),
             {{"num_hidden_layers", 5}, {"no_rope_layers", {1, 1, 1, 0, 1}}}),
      family("olmo2", llama_keys("olmo2"), square),
      family("gemma", gemma_keys("gemma"), {}),
      family("gemma2", gemma_keys("gemma2"),
             {{"query_pre_attn_scalar", 10},
              {"sliding_window", 5},
              {"layer_types", alternating},
              {"attn_logit_softcapping", 2.5},
              {"final_logit_softcapping", 4.0}}),
      family("gemma3", gemma_keys("gemma3_text"),
             {{"query_pre_attn_scalar", 10},
              {"sliding_window", 4},
              {"num_hidden_layers", 7},
              {"layer_types", seven},
              {"rope_local_base_freq", 1e4}}),
      family("phi3", llama_keys("phi3"),
             {{"partial_rotary_factor", 0.6}, {"sliding_window", nullptr}}),
  };
}

class GgufFamilies : public Families {};

TEST_P(GgufFamilies, ComputeTheirFormulasAfterGguf) {
  const auto backend = make_cpu_backend(1);
  convert_model({.from = dir_ / "hub", .gguf = dir_ / "m.gguf"}, *backend);
  expect_logits(dir_ / "m.gguf");
  convert_model({.from = dir_ / "m.gguf", .to = dir_ / "back"}, *backend);
  const Safetensors before(dir_ / "hub"), after(dir_ / "back");
  EXPECT_EQ(before.tensors().size(), after.tensors().size());
  for (const auto& [name, t] : before.tensors())
    EXPECT_TRUE(std::ranges::equal(t.bytes, after.at(name).bytes)) << name;
}

INSTANTIATE_TEST_SUITE_P(All, GgufFamilies, testing::ValuesIn(gguf_families()),
                         [](const auto& p) { return p.param.name; });

// The names and the order of rows that llama.cpp expects.
TEST(FamilyGguf, HasTheTensorsOfItsArchitecture) {
  const auto written = [](const TempDir& dir, const json& config) {
    FamilyReference reference(config);
    reference.logits({1, 2});
    make_dirs(dir / "hub");
    write_file_atomic(dir / "hub" / "config.json", config.dump());
    write_safetensors_model(dir / "hub", reference.tensors());
    const auto backend = make_cpu_backend(1);
    convert_model({.from = dir / "hub", .gguf = dir / "m.gguf"}, *backend);
    return GgufFile(dir / "m.gguf");
  };
  const auto numbers = [](const auto& t) {
    std::vector<float> x(t.bytes.size() / sizeof(float));
    std::memcpy(x.data(), t.bytes.data(), t.bytes.size());
    return x;
  };
  {
    const TempDir dir;
    const GgufFile f = written(dir, gguf_families()[6].config);
    EXPECT_EQ(f.text("general.architecture"), "gemma3");
    EXPECT_EQ(f.whole("gemma3.attention.sliding_window"), 4);
    for (const char* norm : {"attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"})
      EXPECT_TRUE(f.tensors.contains(fmt::format("blk.6.{}.weight", norm))) << norm;
    const Safetensors hub(dir / "hub");  // stays mapped while it is read
    const auto own = numbers(f.tensors.at("blk.0.post_ffw_norm.weight"));
    const auto w = numbers(hub.at("model.layers.0.post_feedforward_layernorm.weight"));
    for (size_t i = 0; i < w.size(); ++i) EXPECT_EQ(own[i], 1 + w[i]);
  }
  {
    const TempDir dir;
    const GgufFile f = written(dir, gguf_families()[7].config);
    EXPECT_EQ(f.whole("phi3.rope.dimension_count"), 6);
    EXPECT_EQ(f.tensors.at("blk.0.attn_qkv.weight").shape, (std::vector<int64_t>{100, 30}));
    EXPECT_EQ(f.tensors.at("blk.0.ffn_up.weight").shape, (std::vector<int64_t>{52, 30}));
  }
  {
    const TempDir dir;  // neighbours are pairs
    const GgufFile f = written(dir, gguf_families()[2].config);
    const Safetensors hub(dir / "hub");
    const auto own = numbers(f.tensors.at("blk.0.attn_q.weight"));
    const auto q = numbers(hub.at("model.layers.0.self_attn.q_proj.weight"));
    EXPECT_EQ(own[30], q[5 * 30]);
    EXPECT_EQ(own[60], q[30]);
  }
}

TEST(FamilyGguf, RefusesWhatItsArchitectureDoesNotCompute) {
  const auto refused = [](size_t family, const json& change, std::string_view part) {
    json config = gguf_families()[family].config;
    config.update(change);
    const ModelConfig c = config_from_hf_json(config, "config.json");
    const auto backend = make_cpu_backend(1);
    ParamStore store(*backend, decoder_params(c), DType::f32);
    const TempDir dir;
    expect_error(error_of([&] { write_gguf_model(dir / "m.gguf", c, store, {}); }), part);
  };
  refused(2, {{"no_rope_layers", {1, 0, 1, 1, 1}}}, "must leave RoPE out in every fourth layer");
  refused(3, {{"tie_word_embeddings", true}}, "olmo2 in GGUF must have an untied head");
  refused(3, {{"attention_bias", true}}, "olmo2 in GGUF cannot have biases");
  refused(4, {{"hidden_act", "gelu"}}, "expected act geglu_tanh for gemma, got geglu");
  refused(5, {{"query_pre_attn_scalar", 17}}, "gemma2 in GGUF must scale scores by 1 / sqrt(10)");
  refused(5, {{"attn_logit_softcapping", nullptr}}, "must have soft caps of scores and of logits");
  refused(6, {{"rope_local_base_freq", 100.0}}, "expected a rope_local_theta of 10000 for gemma3");
  refused(6,
          {{"sliding_window_pattern", 6}, {"num_hidden_layers", 3}, {"layer_types", alternating}},
          "must have a window in all layers but every 6th");
  refused(7, {{"sliding_window", 7}}, "phi3 in GGUF cannot have a sliding window");
}

INSTANTIATE_TEST_SUITE_P(All, Families, testing::ValuesIn(families()),
                         [](const auto& p) { return p.param.name; });

// --- configs as the hub has them ---

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
  const ModelConfig c = read(json::parse(deepseek_v3));
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
  EXPECT_EQ(count_active_params(c), 37552297472);  // of 671B, without embeddings of the modules
}

// The layers of num_nextn_predict_layers follow the others and do not change the logits.
TEST(FamilyFolder, LeavesOutDeepseeksFurtherLayers) {
  json config = deepseek_keys();
  config["num_nextn_predict_layers"] = 1;
  FamilyReference reference(config);
  const auto want = reference.logits({1, 2, 3});
  std::vector<TensorToWrite> tensors = reference.tensors();
  const std::vector<float> zeros(30, 0);
  tensors.push_back({"model.layers.3.enorm.weight", DType::f32, {30}, [&](const ByteSink& sink) {
                       sink(std::as_bytes(std::span(zeros)));
                     }});
  const TempDir dir;
  write_file_atomic(dir / "config.json", config.dump());
  write_safetensors_model(dir.path(), tensors);
  EXPECT_EQ(ModelSource::open(dir.path()).config().layers, 3);
  tensors.back().name = "model.layers.2.enorm.weight";
  write_safetensors_model(dir.path(), tensors);
  expect_error(error_of([&] { ModelSource::open(dir.path()); }),
               "expected only the tensors of its config, but found");
}

TEST(FamilyConfig, RefusesWhatWouldChangeTheNumbers) {
  const auto refused = [](json j, const char* key, const json& value, std::string_view part) {
    j[key] = value;
    expect_error(error_of([&] { read(j); }), part);
  };
  const json phi = json::parse(phi3_mini), gemma3 = json::parse(gemma3_270m);
  refused(phi, "rope_scaling", {{"type", "longrope"}, {"long_factor", {1.0}}},
          "expected rope_type to be default for phi3, got \"longrope\"");
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
  refused(deep, "num_key_value_heads", 2, "expected num_key_value_heads to be 6");
  refused(deep, "scoring_func", "softmax", "expected scoring_func to be \"sigmoid\"");
  refused(deep, "topk_method", "greedy", "expected topk_method to be \"noaux_tc\"");
  refused(deep, "moe_layer_freq", 2, "expected moe_layer_freq to be 1");
  refused(deep, "kv_lora_rank", 0, "expected kv_lora_rank between 1 and 1048576, got 0");
  refused(deep, "qk_rope_head_dim", 5, "expected an even rope_dim, got 5");
  refused(deep, "n_group", 5, "expected expert_groups that divide 12 experts, got 5");
  refused(deep, "first_k_dense_replace", -1, "expected first_k_dense_replace of 0 or more");
  refused(json::parse(qwen25_05b), "is_causal", false, "expected is_causal to be true");
  refused(json::parse(qwen25_05b), "quantization_config", {{"bits", 4}}, "quantization_config");
}

// --- files as the hub has them ---

TEST(FamilyFiles, AcceptsBothNamesOfTheHeadOfGptNeox) {
  FamilyReference reference(neox_keys());
  reference.logits({1, 2});
  TempDir dir;
  make_dirs(dir / "m");
  write_file_atomic(dir / "m" / "config.json", neox_keys().dump());
  std::vector<TensorToWrite> tensors = reference.tensors();
  for (TensorToWrite& t : tensors)
    if (t.name == "embed_out.weight") t.name = "lm_head.weight";
  for (const char* name : {"bias", "masked_bias", "rotary_emb.inv_freq"})
    tensors.push_back({std::string("gpt_neox.layers.0.attention.") + name,
                       DType::f32,
                       {1},
                       [](const ByteSink& sink) { sink(std::vector<std::byte>(4)); }});
  write_safetensors_model(dir / "m", tensors);
  const auto backend = make_cpu_backend(1);
  convert_model({.from = dir / "m", .to = dir / "back"}, *backend);
  EXPECT_TRUE(Safetensors(dir / "back").find("embed_out.weight"));
}

TEST(FamilyFiles, AnIncompleteSetOfExpertsIsRefused) {
  json keys = llama_keys("mixtral");
  keys["num_local_experts"] = 3, keys["num_experts_per_tok"] = 2;
  FamilyReference reference(keys);
  reference.logits({1});
  TempDir dir;
  make_dirs(dir / "m");
  const auto open = [&](int64_t experts, std::string_view without) {
    keys["num_local_experts"] = experts;
    write_file_atomic(dir / "m" / "config.json", keys.dump());
    std::vector<TensorToWrite> tensors = reference.tensors();
    std::erase_if(tensors, [&](const TensorToWrite& t) { return t.name == without; });
    write_safetensors_model(dir / "m", tensors);
    return error_of([&] { ModelSource::open(dir / "m"); });
  };
  const std::string at = "model.layers.1.block_sparse_moe.";
  expect_error(
      open(3, at + "experts.2.w3.weight"),
      "the tensor model.layers.1.block_sparse_moe.experts.2.w3.weight (26, 30) is missing");
  expect_error(open(3, at + "gate.weight"), "the tensor " + at + "gate.weight (3, 30) is missing");
  expect_error(open(4, ""), "block_sparse_moe.gate.weight to be (4, 30), got (3, 30)");
  expect_error(open(2, ""), "block_sparse_moe.gate.weight to be (2, 30), got (3, 30)");
  expect_error(open(1000, ""), "expected tensors for 1000 experts in 3 layers, got");
}

// The gains of gemma are 1 + w in a store, w in a file, also where a checkpoint rounds to bf16.
TEST(FamilyFiles, GemmasGainsAreStoredWithoutTheirOne) {
  const json keys = gemma_keys("gemma");
  FamilyReference reference(keys);
  reference.logits({1});
  TempDir dir;
  make_dirs(dir / "m");
  write_file_atomic(dir / "m" / "config.json", keys.dump());
  write_safetensors_model(dir / "m", reference.tensors());
  const ModelSource source = ModelSource::open(dir / "m");
  const auto backend = make_cpu_backend(1);
  ParamStore store(*backend, decoder_params(source.config()), DType::f32);
  source.load(store);
  const Safetensors file(dir / "m");
  const StoredTensor& t = file.at("model.layers.1.input_layernorm.weight");
  std::vector<float> w(size_t(t.numel()));
  convert_to_floats(w, t.dtype, t.bytes.data());
  const std::vector<float> gain = store.values(Part::weight, "blocks.1.attn.norm.gain");
  for (size_t i = 0; i < w.size(); ++i) EXPECT_EQ(gain[i], 1 + w[i]);
}

// Below a half a gain has bits that its file could not hold in f32, and a run resumes from it.
TEST(FamilyFiles, GemmasGainsComeBackToTheBit) {
  const json keys = gemma_keys("gemma");
  const ModelConfig c = read(keys);
  const auto backend = make_cpu_backend(1);
  ParamStore store(*backend, decoder_params(c), DType::f32),
      again(*backend, decoder_params(c), DType::f32);
  store.initialise(3);
  const std::string low = "blocks.0.attn.norm.gain", high = "blocks.1.attn.norm.gain";
  std::vector<float> gains(size_t(c.dim));
  for (size_t i = 0; i < gains.size(); ++i) gains[i] = 0.5f / float(i + 3);
  store.set(low, gains);
  for (float& g : gains) g = 0.5f + g;
  store.set(high, gains);
  TempDir dir;
  make_dirs(dir / "m");
  write_file_atomic(dir / "m" / "config.json", keys.dump());
  write_safetensors_model(dir / "m", hf_tensors(c, store, DType::f32));
  const Safetensors file(dir / "m");
  EXPECT_EQ(file.at("model.layers.0.input_layernorm.weight").dtype, DType::f64);
  EXPECT_EQ(file.at("model.layers.1.input_layernorm.weight").dtype, DType::f32);
  ModelSource::open(dir / "m").load(again);
  for (const std::string& name : {low, high})
    EXPECT_EQ(store.values(Part::weight, name), again.values(Part::weight, name)) << name;
}

}  // namespace
}  // namespace hearth
