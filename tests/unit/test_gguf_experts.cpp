// GGUF files of models with experts and of latent attention: written and read back, read as
// llama.cpp's converter lays them out, and refusals by name.
#include <cmath>
#include <cstring>
#include <map>

#include "formats/gguf/gguf.h"
#include "model/files/convert.h"
#include "model/files/folder.h"
#include "model/files/gguf_keys.h"
#include "model/files/gguf_model.h"
#include "unit/family_keys.h"
#include "unit/llama_file.h"
#include "unit/model_run.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::deepseek_file, test::mixtral_file;
using test::error_of;
using test::expect_error;
using test::FamilyReference;
using test::LlamaFile;
using test::TempDir;

json sizes(const char* type, const json& more) {
  json j{{"model_type", type},          {"vocab_size", 37},       {"max_position_embeddings", 64},
         {"hidden_size", 32},           {"num_hidden_layers", 3}, {"num_attention_heads", 4},
         {"num_key_value_heads", 2},    {"head_dim", 10},         {"intermediate_size", 32},
         {"hidden_act", "silu"},        {"rms_norm_eps", 1e-6},   {"rope_theta", 5e4},
         {"tie_word_embeddings", false}};
  j.update(more);
  return j;
}

json mixtral(const json& more = json::object()) {
  json j = sizes("mixtral", {{"num_local_experts", 5}, {"num_experts_per_tok", 2}});
  j.update(more);
  return j;
}

json qwen3_moe(const json& more = json::object()) {
  json j = sizes("qwen3_moe", test::qwen3_moe_keys);
  j.update(more);
  return j;
}

json deepseek(const json& more = json::object()) {
  json j = test::deepseek_keys();
  j.update(sizes("deepseek_v3", {{"num_key_value_heads", 4}}));
  j.erase("head_dim");
  j.update(more);
  return j;
}

const json yarn = {{"type", "yarn"},
                   {"factor", 8.0},
                   {"mscale", 0.707},
                   {"beta_fast", 32.0},
                   {"mscale_all_dim", 0.707},
                   {"beta_slow", 1.0},
                   {"original_max_position_embeddings", 8}};

struct Model {
  std::string name;
  json config;
};
void PrintTo(const Model& m, std::ostream* out) { *out << m.name; }

std::vector<Model> models() {
  return {
      {"mixtral", mixtral()},
      {"mixtral_tied",
       mixtral(
           {{"tie_word_embeddings", true}, {"num_local_experts", 1}, {"num_experts_per_tok", 1}})},
      {"qwen3_moe", qwen3_moe()},
      {"deepseek", deepseek()},
      {"deepseek_plain_q", deepseek({{"q_lora_rank", nullptr},
                                     {"n_group", 1},
                                     {"topk_group", 1},
                                     {"norm_topk_prob", false},
                                     {"first_k_dense_replace", 0}})},
      {"deepseek_dense", deepseek({{"first_k_dense_replace", 3}, {"tie_word_embeddings", true}})}};
}

void write_hub(const fs::path& dir, FamilyReference& reference, const json& config) {
  make_dirs(dir);
  write_file_atomic(dir / "config.json", config.dump());
  write_safetensors_model(dir, reference.tensors());
}

constexpr int T = 14;
std::vector<int32_t> some_tokens() {
  std::vector<int32_t> tokens;
  for (int i = 0; i < T; ++i) tokens.push_back(int32_t((i * i * 5 + i * 3 + 1) % 37));
  return tokens;
}
std::vector<float> logits_of(const fs::path& path) {
  const test::BackendCase where{"cpu", [] { return make_cpu_backend(1); }, DType::f32};
  test::LoadedModel m(ModelSource::open(path), where);
  std::vector<int32_t> positions;
  for (int i = 0; i < T; ++i) positions.push_back(i);
  return test::LogitsProgram(m, 1, T).run(some_tokens(), positions);
}
double farthest(std::span<const float> a, std::span<const float> b) {
  double far = a.size() == b.size() ? 0 : 1e9;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    far = std::max(far, std::abs(double(a[i]) - double(b[i])));
  return far;
}
void convert(const fs::path& from, const fs::path& to, const char* dtype = "fp32") {
  const auto backend = make_cpu_backend(1);
  if (to.extension() == ".gguf")
    convert_model({.from = from, .gguf = to, .dtype = dtype}, *backend);
  else
    convert_model({.from = from, .to = to, .dtype = dtype}, *backend);
}

// --- what hearth writes ---

class GgufExperts : public testing::TestWithParam<Model> {
 protected:
  void SetUp() override {
    reference_.logits(some_tokens());
    write_hub(dir_ / "hub", reference_, GetParam().config);
  }
  FamilyReference reference_{GetParam().config};
  TempDir dir_;
};

TEST_P(GgufExperts, ComeBackToTheBit) {
  convert(dir_ / "hub", dir_ / "m.gguf");
  EXPECT_EQ(logits_of(dir_ / "m.gguf"), logits_of(dir_ / "hub"));
  EXPECT_TRUE(ModelSource::open(dir_ / "m.gguf").config() ==
              ModelSource::open(dir_ / "hub").config());
  convert(dir_ / "m.gguf", dir_ / "back");
  const Safetensors before(dir_ / "hub"), after(dir_ / "back");
  EXPECT_EQ(before.tensors().size(), after.tensors().size());
  for (const auto& [name, t] : before.tensors())
    EXPECT_TRUE(std::ranges::equal(t.bytes, after.at(name).bytes)) << name;
}

TEST_P(GgufExperts, KeepWhatCoarserTypesCan) {
  const std::vector<float> want = logits_of(dir_ / "hub");
  double most = 0;
  for (const float x : want) most = std::max(most, std::abs(double(x)));
  for (const auto& [dtype, error] : {std::pair{"fp16", 0.01}, {"bf16", 0.06}, {"q8_0", 0.06}}) {
    const fs::path file = dir_ / (std::string(dtype) + ".gguf");
    convert(dir_ / "hub", file, dtype);
    const double far = farthest(logits_of(file), want);
    EXPECT_LT(far, error * most) << dtype;
    EXPECT_GT(far, 0) << dtype;
  }
}

INSTANTIATE_TEST_SUITE_P(, GgufExperts, testing::ValuesIn(models()),
                         [](const auto& p) { return p.param.name; });

TEST(GgufExpertFiles, HaveTheKeysTypesAndShapesOfLlamaCpp) {
  const TempDir dir;
  FamilyReference reference(deepseek());
  reference.logits({1});
  write_hub(dir / "hub", reference, deepseek());
  convert(dir / "hub", dir / "m.gguf", "q8_0");
  const GgufFile f(dir / "m.gguf");
  EXPECT_EQ(f.text("general.architecture"), "deepseek2");
  for (const auto& [key, value] : std::map<std::string, int64_t>{{"attention.head_count_kv", 1},
                                                                 {"attention.key_length", 15},
                                                                 {"attention.value_length", 11},
                                                                 {"attention.key_length_mla", 11},
                                                                 {"attention.value_length_mla", 5},
                                                                 {"attention.kv_lora_rank", 11},
                                                                 {"attention.q_lora_rank", 9},
                                                                 {"rope.dimension_count", 4},
                                                                 {"leading_dense_block_count", 1},
                                                                 {"expert_count", 12},
                                                                 {"expert_used_count", 3},
                                                                 {"expert_shared_count", 2},
                                                                 {"expert_feed_forward_length", 8},
                                                                 {"expert_gating_func", 2},
                                                                 {"expert_group_count", 4},
                                                                 {"expert_group_used_count", 2}})
    EXPECT_EQ(f.whole("deepseek2." + key), value) << key;
  EXPECT_TRUE(f.flag("deepseek2.expert_weights_norm"));
  using Shape = std::vector<int64_t>;
  const auto& tensors = f.tensors;
  EXPECT_EQ(tensors.at("blk.1.ffn_gate_exps.weight").shape, (Shape{12, 8, 32}));
  EXPECT_EQ(tensors.at("blk.1.ffn_gate_exps.weight").type, GgmlType::q8_0);
  EXPECT_EQ(tensors.at("blk.1.ffn_down_exps.weight").shape, (Shape{12, 32, 8}));
  EXPECT_EQ(tensors.at("blk.1.ffn_down_exps.weight").type, GgmlType::f16);  // no whole block
  EXPECT_EQ(tensors.at("blk.1.ffn_gate_inp.weight").type, GgmlType::f32);
  EXPECT_EQ(tensors.at("blk.1.exp_probs_b.bias").shape, (Shape{12}));
  EXPECT_EQ(tensors.at("blk.1.ffn_up_shexp.weight").shape, (Shape{16, 32}));
  EXPECT_EQ(tensors.at("blk.0.attn_k_b.weight").shape, (Shape{4, 11, 7}));
  EXPECT_EQ(tensors.at("blk.0.attn_v_b.weight").shape, (Shape{4, 5, 11}));
  EXPECT_FALSE(tensors.contains("blk.0.attn_kv_b.weight"));
}

// A quantised file takes no more memory than its bytes until a tensor of it is read.
TEST(GgufExpertFiles, AreUnpackedTensorByTensor) {
  const TempDir dir;
  FamilyReference reference(mixtral());
  reference.logits(some_tokens());
  write_hub(dir / "hub", reference, mixtral());
  convert(dir / "hub", dir / "m.gguf", "q8_0");
  const OpenedModel opened = open_gguf(dir / "m.gguf");
  const StoredTensor& up =
      opened.file.tensors.at("model.layers.1.block_sparse_moe.experts.2.w3.weight");
  ASSERT_TRUE(up.unpack);
  EXPECT_EQ(up.numel(), 32 * 32);
  EXPECT_EQ(up.bytes.size(), size_t(32 * 34));  // blocks of 32: a scale of f16 and the codes
  EXPECT_EQ(up.unpack(up.bytes).size(), size_t(up.numel()));
}

TEST(GgufExpertFiles, KeepYarnAndTurnPairsOfHalves) {
  const TempDir dir;
  for (const json& more : {json{{"rope_scaling", yarn}}, json{{"rope_interleave", false}}}) {
    FamilyReference reference(deepseek());
    reference.logits({1});
    write_hub(dir / "hub", reference, deepseek(more));
    convert(dir / "hub", dir / "m.gguf");
    const ModelConfig before = ModelSource::open(dir / "hub").config();
    const ModelConfig after = ModelSource::open(dir / "m.gguf").config();
    EXPECT_EQ(after.rope_pairs, RopePairs::interleaved);
    EXPECT_EQ(before.mla, after.mla);
    EXPECT_EQ(before.rope_context, after.rope_context);
    EXPECT_LT(farthest(logits_of(dir / "m.gguf"), logits_of(dir / "hub")), 2e-5);
    fs::remove_all(dir / "hub");
  }
}

// --- what llama.cpp's converter writes ---

TEST(LlamaCppFiles, ComputeTheFormulasOfTheirFamilies) {
  const TempDir dir;
  const auto expect_formulas = [&](FamilyReference& reference, const LlamaFile& file) {
    file.write(dir / "m.gguf");
    std::vector<float> want;
    for (const test::Vec& v : reference.logits(some_tokens()))
      for (const double x : v) want.push_back(float(x));
    EXPECT_LT(farthest(logits_of(dir / "m.gguf"), want), 5e-5);
  };
  FamilyReference m(mixtral());
  m.logits(some_tokens());
  expect_formulas(m, mixtral_file(m, mixtral()));
  for (const bool split : {true, false}) {
    FamilyReference d(deepseek());
    d.logits(some_tokens());
    LlamaFile file = deepseek_file(d, deepseek(), split);
    file.key("expert_gating_func", 2);
    expect_formulas(d, file);
  }
}

// Blocks do not cross experts: each has its own rows.
TEST(LlamaCppFiles, KeepTheBlocksOfEveryExpert) {
  const TempDir dir;
  const json j = mixtral({{"hidden_size", 256},
                          {"intermediate_size", 256},
                          {"num_hidden_layers", 1},
                          {"num_local_experts", 3}});
  FamilyReference reference(j);
  reference.logits({1});
  write_hub(dir / "hub", reference, j);
  for (const GgmlType type : {GgmlType::q4_k, GgmlType::q6_k, GgmlType::q8_0, GgmlType::bf16}) {
    LlamaFile file = mixtral_file(reference, j);
    const std::string experts = "model.layers.0.block_sparse_moe.experts.";
    for (const auto& [name, w] : {std::pair{"gate", "w1"}, {"down", "w2"}, {"up", "w3"}}) {
      file.drop(fmt::format("blk.0.ffn_{}_exps.weight", name));
      file.add_stack(fmt::format("blk.0.ffn_{}_exps.weight", name), experts,
                     fmt::format(".{}.weight", w), 3, type);
    }
    file.write(dir / "m.gguf");
    const ModelSource source = ModelSource::open(dir / "m.gguf");
    const auto backend = make_cpu_backend(1);
    ParamStore store(*backend, decoder_params(source.config()), DType::f32);
    source.load(store);
    const std::vector<float> down = store.values(Part::weight, "blocks.0.mlp.experts.down.weight");
    const Safetensors hub(dir / "hub");
    for (int64_t e = 0; e < 3; ++e) {
      std::vector<float> own(256 * 256);
      const StoredTensor& t = hub.at(fmt::format("{}{}.w2.weight", experts, e));
      std::memcpy(own.data(), t.bytes.data(), t.bytes.size());
      own = from_ggml(to_ggml(own, type), type);
      const auto got = std::span(down).subspan(size_t(e) * own.size(), own.size());
      EXPECT_TRUE(std::ranges::equal(got, own)) << to_string(type) << e;
    }
  }
}

// --- refusals ---

class LlamaCppRefusals : public testing::Test {
 protected:
  // The error of opening a file after a change.
  std::string opening(LlamaFile file, const std::function<void(LlamaFile&)>& change) {
    change(file);
    file.write(dir_ / "bad.gguf");
    return error_of([&] { ModelSource::open(dir_ / "bad.gguf"); });
  }
  TempDir dir_;
};

TEST_F(LlamaCppRefusals, NameTheTensorOfExpertsThatIsWrong) {
  FamilyReference reference(mixtral());
  reference.logits(some_tokens());
  const LlamaFile good = mixtral_file(reference, mixtral());
  EXPECT_EQ(opening(good, [](LlamaFile&) {}), "");
  const std::string at = "model.layers.1.block_sparse_moe.experts.";
  expect_error(opening(good,
                       [&](LlamaFile& f) {
                         f.drop("blk.1.ffn_up_exps.weight");
                         f.add_stack("blk.1.ffn_up_exps.weight", at, ".w3.weight", 4);
                       }),
               "expected blk.1.ffn_up_exps.weight for the 5 experts of llama.expert_count, got 4");
  expect_error(opening(good, [](LlamaFile& f) { f.drop("blk.2.ffn_gate_inp.weight"); }),
               "the tensor blk.2.ffn_gate_inp.weight is missing");
  expect_error(opening(good, [](LlamaFile& f) { f.drop("blk.0.ffn_down_exps.weight"); }),
               "the tensor blk.0.ffn_down_exps.weight is missing");
  expect_error(opening(good,
                       [&](LlamaFile& f) {
                         f.drop("blk.1.ffn_up_exps.weight");
                         f.add("blk.1.ffn_up_exps.weight", at + "0.w3.weight");
                       }),
               "expected blk.1.ffn_up_exps.weight with 3 dimensions, got 2");
  expect_error(opening(good,
                       [](LlamaFile& f) {
                         f.drop("blk.1.ffn_down_exps.weight");
                         f.put("blk.1.ffn_down_exps.weight", {5, 32, 31},
                               std::vector<float>(5 * 32 * 31), GgmlType::f32);
                       }),
               "experts.0.w2.weight to be (32, 32), got (32, 31)");
  expect_error(opening(good,
                       [&](LlamaFile& f) {
                         f.drop("blk.0.ffn_gate_exps.weight");
                         f.add("blk.0.ffn_gate.0.weight", at + "0.w1.weight");
                       }),
               "got one per expert (blk.0.ffn_gate.0.weight)");
  expect_error(opening(good, [](LlamaFile& f) { f.key("expert_gating_func", 2); }),
               "expected llama.expert_gating_func to be 1 (softmax), got 2 (sigmoid)");
  expect_error(opening(good, [](LlamaFile& f) { f.key("expert_group_count", 2); }),
               "expected llama.expert_group_count to be 1, got 2");
}

TEST_F(LlamaCppRefusals, NameTheKeyThatDeepseekDoesNotHave) {
  FamilyReference reference(deepseek());
  reference.logits(some_tokens());
  const LlamaFile good = deepseek_file(reference, deepseek(), true);
  const auto with = [&](const std::function<void(LlamaFile&)>& change) {
    return opening(good, [&](LlamaFile& f) {
      f.key("expert_gating_func", 2);
      change(f);
    });
  };
  EXPECT_EQ(with([](LlamaFile&) {}), "");
  expect_error(opening(good, [](LlamaFile&) {}),
               "expected deepseek2.expert_gating_func to be 2 (sigmoid), got 0 (softmax)");
  expect_error(opening(good, [](LlamaFile& f) { f.key("expert_gating_func", 4); }), "sqrtsoftplus");
  expect_error(opening(good, [](LlamaFile& f) { f.key("expert_gating_func", 77); }),
               "got 77 (unknown): not supported");
  expect_error(with([](LlamaFile& f) { f.drop("blk.1.exp_probs_b.bias"); }),
               "the tensor blk.1.exp_probs_b.bias is missing");
  expect_error(with([](LlamaFile& f) { f.drop("blk.0.attn_k_b.weight"); }),
               "the tensor blk.0.attn_k_b.weight is missing");
  expect_error(with([](LlamaFile& f) {
                 f.drop("blk.0.attn_v_b.weight");
                 f.put("blk.0.attn_v_b.weight", {4, 11, 5}, std::vector<float>(220), GgmlType::f32);
               }),
               "expected blk.0.attn_v_b.weight to be (4, 5, 11), got (4, 11, 5)");
  expect_error(with([](LlamaFile& f) {
                 f.other_key("rope.scaling.type", "linear"),
                     f.other_key("rope.scaling.factor", 2.0f);
               }),
               "expected deepseek2.rope.scaling.type to be none or yarn, got \"linear\"");
  expect_error(with([](LlamaFile& f) {
                 f.other_key("rope.scaling.type", "yarn"), f.other_key("rope.scaling.factor", 2.0f);
               }),
               "expected deepseek2.rope.scaling.yarn_log_multiplier above 0 with yarn, got 0");
  expect_error(with([](LlamaFile& f) { f.other_key("attention.temperature_scale", 0.1f); }),
               "expected deepseek2.attention.temperature_scale to be 0");
  expect_error(with([](LlamaFile& f) { f.key("nextn_predict_layers", 3); }),
               "expected deepseek2.nextn_predict_layers below the 3 layers, got 3");
  json coarse = deepseek();
  coarse["rms_norm_eps"] = 1e-5;
  expect_error(opening(deepseek_file(reference, coarse, true), [](LlamaFile&) {}),
               "expected deepseek2.attention.layer_norm_rms_epsilon to be 1e-06");
}

TEST_F(LlamaCppRefusals, NameTheTypeThatHearthLacks) {
  FamilyReference reference(mixtral());
  reference.logits(some_tokens());
  mixtral_file(reference, mixtral()).write(dir_ / "m.gguf");
  std::string file = read_file(dir_ / "m.gguf");
  const std::string name = "blk.1.ffn_up_exps.weight";
  const uint32_t iq2_s = 22;  // after the name: the rank and three dimensions
  std::memcpy(file.data() + file.find(name) + name.size() + 4 + 3 * 8, &iq2_s, sizeof iq2_s);
  write_file_atomic(dir_ / "bad.gguf", file);
  const std::string error = error_of([&] { ModelSource::open(dir_ / "bad.gguf"); });
  expect_error(error,
               "expected tensor \"blk.1.ffn_up_exps.weight\" of a type among F32, F16, BF16");
  expect_error(error, "got IQ2_S");
}

// Layers of multi-token prediction follow the others, and the logits do not need them.
TEST(LlamaCppFiles, LeaveOutLayersOfFurtherTokens) {
  const TempDir dir;
  FamilyReference reference(deepseek());
  reference.logits(some_tokens());
  const auto written = [&](int64_t further, const std::string& name) {
    LlamaFile file =
        deepseek_file(reference, deepseek({{"num_nextn_predict_layers", further}}), true);
    file.key("expert_gating_func", 2);
    if (!name.empty()) file.put(name, {32}, std::vector<float>(32), GgmlType::f32);
    file.write(dir / "m.gguf");
    return dir / "m.gguf";
  };
  const std::vector<float> want = logits_of(written(0, ""));
  EXPECT_EQ(logits_of(written(1, "blk.3.nextn.enorm.weight")), want);
  for (const auto& [further, name] : {std::pair{0, "blk.3.x.weight"}, {1, "blk.4.x.weight"}}) {
    written(further, name);
    expect_error(error_of([&] { ModelSource::open(dir / "m.gguf"); }),
                 "expected only the tensors of its keys, but found");
  }
}

// A count that the tensors do not have is refused before anything of that size is made.
TEST_F(LlamaCppRefusals, MakeNothingOfTheSizeThatAKeyClaims) {
  GgufKeys keys;
  keys.set("general.architecture", "qwen3moe");
  for (const auto& [key, value] : std::map<std::string, int64_t>{{"block_count", 10000},
                                                                 {"context_length", 1 << 30},
                                                                 {"embedding_length", 1 << 20},
                                                                 {"feed_forward_length", 1 << 20},
                                                                 {"attention.head_count", 1},
                                                                 {"attention.key_length", 64},
                                                                 {"expert_count", 1024},
                                                                 {"expert_used_count", 8}})
    keys.set("qwen3moe." + key, value);
  keys.set("qwen3moe.attention.layer_norm_rms_epsilon", 1e-6f);
  const auto opened = [&](int64_t extra) {
    std::vector<GgufTensorToWrite> tensors{
        {"token_embd.weight", GgmlType::f32, {1, 1}, [] { return std::vector<float>(1); }}};
    for (int64_t i = 0; i < extra; ++i)
      tensors.push_back(
          {"t" + std::to_string(i), GgmlType::f32, {1}, [] { return std::vector<float>(1); }});
    write_gguf(dir_ / "bad.gguf", keys, tensors);
    return error_of([&] { ModelSource::open(dir_ / "bad.gguf"); });
  };
  expect_error(opened(0), "expected tensors for 10000 layers, got 1");
  expect_error(opened(10000), "the tensor blk.0.ffn_gate_inp.weight is missing");
}

TEST(GgufExpertFiles, RefuseWhatLlamaCppComputesOtherwise) {
  const auto refused = [](const json& config, std::string_view part) {
    const ModelConfig c = config_from_hf_json(config, "config.json");
    expect_error(error_of([&] { exportable(c); }), part);
  };
  refused(mixtral({{"sliding_window", 6}}), "llama in GGUF cannot have a sliding window");
  refused(qwen3_moe({{"norm_topk_prob", false}}), "(norm_topk)");
  refused(qwen3_moe({{"mlp_only_layers", {1}}}), "must have experts in every layer");
  refused(qwen3_moe({{"attention_bias", true}}), "qwen3moe in GGUF cannot have biases");
  refused(deepseek({{"attention_bias", true}}), "deepseek2 in GGUF cannot have biases");
  refused(deepseek({{"rms_norm_eps", 1e-5}}), "expected a norm_eps of 1e-06");
  refused(deepseek({{"num_hidden_layers", 27}}), "27 layers in GGUF cannot have a q_latent, got 9");
  json scaling = yarn;
  scaling.erase("mscale_all_dim");
  refused(deepseek({{"rope_scaling", scaling}}), "equal yarn_mscale and yarn_mscale_all above 0");
  refused(deepseek({{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}),
          "deepseek2 in GGUF cannot use the rope_scaling linear");
  refused(deepseek({{"n_group", 12}, {"topk_group", 6}}), "several experts in a group");
}

}  // namespace
}  // namespace hearth
