// The families of Hugging Face folders and GGUF files: logits by their published formulas, tensors
// written back byte for byte, and refusals by name. Configs are in test_family_configs.cpp.
#include "family_reference.h"

#include "formats/json.h"
#include "model/files/convert.h"
#include "model/files/folder.h"
#include "model/files/gguf_keys.h"
#include "model/files/gguf_model.h"
#include "model/layer_spec.h"
#include "unit/family_keys.h"
#include "unit/model_run.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::alternating, test::qwen3_moe_keys;
using test::deepseek_keys, test::gemma_keys, test::llama_keys, test::neox_keys;
using test::error_of;
using test::expect_error;
using test::FamilyReference;
using test::TempDir;

struct Family {
  std::string name;
  json config;
};
void PrintTo(const Family& f, std::ostream* out) { *out << f.name; }

Family family(const char* name, json config, const json& more) {
  if (!more.is_null()) config.update(more);
  return {name, std::move(config)};
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
      family("phi3_long_factors", test::long_rope_keys(), {}),
      family("phi3_short_factors", test::long_rope_keys(),
             {{"original_max_position_embeddings", 64}, {"sliding_window", 9}}),
      family("phi3_attention_factor", test::long_rope_keys(),
             [] {
               json scaling = test::long_rope_keys()["rope_scaling"];
               scaling["attention_factor"] = 1.75, scaling["factor"] = 8.0;
               return json{{"rope_scaling", scaling}};
             }()),
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
  test::expect_same_tensors(dir_ / "hub", dir_ / "back");
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
      family("qwen2", llama_keys("qwen2"), square),
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
             {{"partial_rotary_factor", 0.6},
              {"sliding_window", nullptr},
              {"num_attention_heads", 3},
              {"num_key_value_heads", 1}}),
      family("gpt_neox", neox_keys(), {}),
      family("gpt_neox_tanh", neox_keys(),
             {{"hidden_act", "gelu_new"}, {"use_parallel_residual", false}}),
      // A window that no text fills, as Phi-4-mini has it.
      family("phi3_longrope", test::long_rope_keys(),
             {{"num_attention_heads", 3}, {"num_key_value_heads", 1}, {"sliding_window", 64}}),
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
    EXPECT_EQ(f.tensors.at("blk.0.attn_qkv.weight").shape, (std::vector<int64_t>{50, 30}));
    EXPECT_EQ(f.tensors.at("blk.0.ffn_up.weight").shape, (std::vector<int64_t>{52, 30}));
  }
  {
    const TempDir dir;  // q, k and v of all heads
    const GgufFile f = written(dir, gguf_families()[8].config);
    EXPECT_EQ(f.text("general.architecture"), "gptneox");
    EXPECT_EQ(f.whole("gptneox.rope.dimension_count"), 4);
    EXPECT_TRUE(f.flag("gptneox.use_parallel_residual"));
    const Safetensors hub(dir / "hub");
    const auto own = numbers(f.tensors.at("blk.1.attn_qkv.bias"));
    const auto by_head = numbers(hub.at("gpt_neox.layers.1.attention.query_key_value.bias"));
    for (size_t head = 0; head < 5; ++head)
      for (size_t part = 0; part < 3; ++part)
        EXPECT_EQ(own[(part * 5 + head) * 8], by_head[(head * 3 + part) * 8]);
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
  refused(0, {{"num_attention_heads", 6}},
          "qwen2 in GGUF must have heads as wide as the model, 30 in all, got 6 of 10");
  refused(7, {{"num_attention_heads", 6}}, "phi3 in GGUF must have heads as wide as the model");
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"beta_fast", 4.0}};
  refused(1, {{"rope_scaling", yarn}},
          "expected a rope_low of 1 and a rope_high of 32 for yarn in GGUF, got 1 and 4");
  refused(2, {{"no_rope_layers", {1, 0, 1, 1, 1}}}, "must leave RoPE out in every fourth layer");
  refused(3, {{"tie_word_embeddings", true}}, "olmo2 in GGUF must have an untied head");
  refused(3, {{"attention_bias", true}}, "olmo2 in GGUF cannot have biases");
  refused(4, {{"hidden_act", "gelu"}}, "expected act geglu_tanh for gemma, got geglu");
  refused(5, {{"query_pre_attn_scalar", 17}}, "gemma2 in GGUF must scale scores by 1 / sqrt(10)");
  refused(5, {{"attn_logit_softcapping", nullptr}}, "must have soft caps of scores and of logits");
  const json full = {"full_attention", "full_attention", "full_attention"};
  refused(5, {{"layer_types", full}}, "gemma2 in GGUF must have a window in at least one layer");
  refused(6, {{"rope_local_base_freq", 100.0}}, "expected a rope_local_theta of 10000 for gemma3");
  const json uneven = {"full_attention", "sliding_attention", "full_attention"};
  refused(6, {{"sliding_window_pattern", 6}, {"num_hidden_layers", 3}, {"layer_types", uneven}},
          "must have a window in every layer, or in all but every second, third or Nth");
  refused(8, {{"tie_word_embeddings", true}}, "gptneox in GGUF must have an untied head");
  refused(8, {{"attention_bias", false}}, "gptneox in GGUF must have biases of attention");
  refused(7, {{"sliding_window", 7}}, "phi3 in GGUF cannot have a sliding window");
}

// llama.cpp takes the layers with a window from a key, where a file has it.
TEST(FamilyGguf, ReadsWhichLayersHaveAWindow) {
  for (const auto& [family, arch] : {std::pair(5, "gemma2"), {6, "gemma3"}}) {
    const ModelConfig c = config_from_hf_json(gguf_families()[size_t(family)].config, "config");
    const auto backend = make_cpu_backend(1);
    ParamStore store(*backend, decoder_params(c), DType::f32);
    const TempDir dir;
    write_gguf_model(dir / "m.gguf", c, store, {});
    const GgufFile file(dir / "m.gguf");  // stays mapped while its table is read
    const std::string key = fmt::format("{}.attention.sliding_window_pattern", arch);
    const auto with = [&](const std::string& name, GgufKind kind, auto number, bool list) {
      GgufTable t = file;
      t.values[name] = {.kind = kind, .list = list, .bytes = std::as_bytes(std::span(&number, 1))};
      return read_gguf_config(t);
    };
    for (const uint32_t every : {0, 1, 2, 3}) {
      const ModelConfig read = with(key, GgufKind::u32, every, /*list=*/false);
      const std::vector<LayerSpec> layers = layer_specs(read);
      for (size_t i = 0; i < layers.size(); ++i)
        EXPECT_EQ(layers[i].window, every == 0 || (i + 1) % every ? c.window : 0) << every << i;
      const auto write = [&] { write_gguf_model(dir / "again.gguf", read, store, {}); };
      if (family == 5 && every == 1) {  // llama.cpp aborts if no layer of a gemma2 has a window
        expect_error(error_of(write), "gemma2 in GGUF must have a window in at least one layer");
        continue;
      }
      write();
      EXPECT_EQ(layer_specs(read_gguf_config(GgufFile(dir / "again.gguf"))), layers) << every;
    }
    expect_error(error_of([&] { with(key, GgufKind::u32, 2u, true); }),
                 "expected " + key + " to be a whole number, got a list");
    expect_error(error_of([&] { with(key, GgufKind::i32, -1, false); }),
                 "expected " + key + " of 0 or more, got -1");
    const std::string local = fmt::format("{}.rope.freq_base_swa", arch);
    const std::string error = error_of([&] { with(local, GgufKind::f32, 500.f, false); });
    EXPECT_EQ(error.find("expected " + local + " to be ") != error.npos, family == 5) << error;
  }
}

// Keys that llama.cpp reads and that change the model.
TEST(FamilyGguf, ReadsOrRefusesWhatChangesTheModel) {
  const ModelConfig c = config_from_hf_json(gguf_families()[3].config, "config");
  const auto backend = make_cpu_backend(1);
  ParamStore store(*backend, decoder_params(c), DType::f32);
  const TempDir dir;
  write_gguf_model(dir / "m.gguf", c, store, {});
  const GgufFile file(dir / "m.gguf");  // stays mapped while its table is read
  const auto with = [&](const char* key, GgufKind kind, auto value) {
    GgufTable t = file;
    t.values[fmt::format("olmo2.{}", key)] = {.kind = kind,
                                              .bytes = std::as_bytes(std::span(&value, 1))};
    return read_gguf_config(t);
  };
  EXPECT_EQ(error_of([&] { with("attention.sliding_window", GgufKind::u32, 0u); }), "");
  expect_error(error_of([&] { with("attention.sliding_window", GgufKind::u32, 4096u); }),
               "expected no olmo2.attention.sliding_window, got 4096: OLMo 3 is not supported");
  EXPECT_EQ(error_of([&] { with("attention.causal", GgufKind::flag, uint8_t(1)); }), "");
  expect_error(error_of([&] { with("attention.causal", GgufKind::flag, uint8_t(0)); }),
               "expected olmo2.attention.causal to be true, got false");
  for (const char* key : {"rope.scaling.factor", "rope.scale_linear"}) {
    const ModelConfig scaled = with(key, GgufKind::f32, 4.f);
    EXPECT_EQ(scaled.rope_scaling, RopeScaling::linear) << key;
    EXPECT_EQ(scaled.rope_factor, 4) << key;
    EXPECT_TRUE(with(key, GgufKind::f32, 1.f) == c.resolve()) << key;
  }
}

// llama.cpp gives a gemma3 windows, and a RoPE of their own, only by the key of their width.
TEST(FamilyGguf, Gemma3HasNoWindowsWithoutTheirWidth) {
  ModelConfig c = config_from_hf_json(gguf_families()[6].config, "config");
  const auto backend = make_cpu_backend(1);
  ParamStore store(*backend, decoder_params(c), DType::f32);
  const TempDir dir;
  const std::string window = "gemma3.attention.sliding_window", period = window + "_pattern";
  const auto expect_full = [&](const GgufTable& t) {
    const ModelConfig read = read_gguf_config(t);
    EXPECT_EQ(read.rope_theta, c.rope_theta);
    EXPECT_EQ(read.rope_local_theta, 1e4);
    for (const LayerSpec& l : layer_specs(read)) {
      EXPECT_EQ(l.window, 0);
      EXPECT_TRUE(l.rope && !l.rope_local);
    }
  };
  write_gguf_model(dir / "m.gguf", c, store, {});
  const GgufFile file(dir / "m.gguf");  // stays mapped while its table is read
  GgufTable t = file;
  t.values.erase(window);
  expect_full(t);
  const uint32_t zero = 0, three = 3;
  const float base = 500;
  t.values[period] = {.kind = GgufKind::u32, .bytes = std::as_bytes(std::span(&three, 1))};
  t.values["gemma3.rope.freq_base_swa"] = {.kind = GgufKind::f32,
                                           .bytes = std::as_bytes(std::span(&base, 1))};
  expect_full(t);
  t.values[window] = {.kind = GgufKind::u32, .bytes = std::as_bytes(std::span(&zero, 1))};
  expect_full(t);

  c.window_pattern = "L", c.rope_pattern = "";  // a width that no layer uses
  ASSERT_GT(c.window, 0);
  write_gguf_model(dir / "full.gguf", c, store, {});
  const GgufFile full(dir / "full.gguf");
  EXPECT_FALSE(full.has(window));
  EXPECT_FALSE(full.has(period));
  expect_full(full);
}

INSTANTIATE_TEST_SUITE_P(All, Families, testing::ValuesIn(families()),
                         [](const auto& p) { return p.param.name; });

}  // namespace
}  // namespace hearth
