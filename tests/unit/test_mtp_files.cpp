// Modules of multi-token prediction in files: deepseek_v3's layers after the last compute their
// published formulas, are written back byte for byte and draft; sets that do not fit are refused.
#include <cstring>
#include <numeric>

#include "family_reference.h"
#include "formats/json.h"
#include "infer/engine.h"
#include "model/files/convert.h"
#include "model/files/folder.h"
#include "model/files/gguf_model.h"
#include "model/layer_spec.h"
#include "ops/record.h"
#include "unit/family_keys.h"
#include "unit/model_run.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::deepseek_keys, test::error_of, test::expect_error, test::FamilyReference, test::TempDir;

constexpr int64_t T = 11;
const test::BackendCase cpu{"cpu", [] { return make_cpu_backend(1); }, DType::f32};

json with_modules(int64_t modules, json more = json::object()) {
  json j = deepseek_keys();
  j["num_nextn_predict_layers"] = modules;
  j.update(more);
  return j;
}
// Experts; two modules; biases and no latent queries; dense MLPs and a tied head.
std::vector<json> configs() {
  const json biases = {{"q_lora_rank", nullptr},
                       {"attention_bias", true},
                       {"first_k_dense_replace", 0},
                       {"n_group", 1},
                       {"topk_group", 1}};
  json dense = with_modules(2, {{"first_k_dense_replace", 5}, {"tie_word_embeddings", true}});
  for (const char* key : {"n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
                          "n_shared_experts", "norm_topk_prob", "routed_scaling_factor", "n_group",
                          "topk_group", "moe_layer_freq", "scoring_func", "topk_method"})
    dense.erase(key);
  return {with_modules(1), with_modules(2), with_modules(3, biases), dense};
}

std::vector<int32_t> some_tokens() {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < T; ++i) tokens.push_back(int32_t((i * i * 5 + i * 3 + 1) % 17));
  return tokens;
}

// A folder as the hub has it, with random weights.
struct Hub {
  explicit Hub(const json& config) : reference(config) {
    reference.logits(some_tokens());
    want = reference.further_logits(some_tokens());
    tensors = reference.tensors();
    make_dirs(path());
    write_file_atomic(path() / "config.json", config.dump());
    write();
  }
  fs::path path() const { return dir / "hub"; }
  void write() const { write_safetensors_model(path(), tensors); }
  std::string refusal() const {
    return error_of([&] { test::LoadedModel(ModelSource::open(path()), cpu); });
  }
  TensorToWrite& tensor(std::string_view name) {
    return *std::ranges::find(tensors, name, &TensorToWrite::name);
  }

  FamilyReference reference;
  std::vector<std::vector<test::Vec>> want;  // logits of each module
  std::vector<TensorToWrite> tensors;
  TempDir dir;
};

// The logits (T, V) of each module, from the forward pass of training.
std::vector<std::vector<float>> module_logits(test::LoadedModel& m) {
  Tape t(DType::f32, "modules");
  std::vector<Var> further;
  decoder(t, m.config, declare_inputs(t, 1, T, false), {.further = &further});
  for (size_t k = 0; k < further.size(); ++k)
    record_gemm(t, {.c = t.result("logits" + std::to_string(k), {T, m.config.vocab}, DType::f32),
                    .a = t.view(further[k], {T, m.config.dim}),
                    .b = head_weight(t, m.config),
                    .spec = {.tb = true}});
  Exec exec(std::move(t), m.memory);
  std::vector<int32_t> positions(static_cast<size_t>(T));
  std::iota(positions.begin(), positions.end(), 0);
  m.memory.state.write<int32_t>("modules.tokens", some_tokens());
  m.memory.state.write<int32_t>("modules.positions", positions);
  exec.run();
  std::vector<std::vector<float>> out;
  for (size_t k = 0; k < further.size(); ++k) {
    out.emplace_back(size_t(T * m.config.vocab));
    m.memory.state.read<float>("modules.logits" + std::to_string(k), out.back());
  }
  return out;
}

void expect_logits(const fs::path& folder, const std::vector<std::vector<test::Vec>>& want) {
  test::LoadedModel m(ModelSource::open(folder), cpu);
  const auto got = module_logits(m);
  ASSERT_EQ(got.size(), want.size());
  for (size_t k = 0; k < want.size(); ++k) {
    ASSERT_EQ(int64_t(want[k].size()), T - 1 - int64_t(k));
    double far = 0, large = 0;
    for (size_t i = 0; i < want[k].size(); ++i)
      for (size_t v = 0; v < want[k][i].size(); ++v) {
        const double x = want[k][i][v];
        far = std::max(far, std::abs(double(got[k][i * size_t(m.config.vocab) + v]) - x));
        large = std::max(large, std::abs(x));
      }
    EXPECT_LT(far, 1e-5 * std::max(1.0, large)) << k;
    EXPECT_GT(large, 0.3);
  }
}

TEST(MtpFiles, ComputeTheirFormulas) {
  for (const json& config : configs()) {
    const Hub hub(config);
    EXPECT_EQ(ModelSource::open(hub.path()).config().mtp,
              config["num_nextn_predict_layers"].get<int64_t>());
    expect_logits(hub.path(), hub.want);
  }
}

TEST(MtpFiles, AreWrittenBackByteForByte) {
  const auto backend = make_cpu_backend(1);
  for (const json& config : configs()) {
    const Hub hub(config);
    const fs::path back = hub.dir / "back";
    EXPECT_EQ(convert_model({.from = hub.path(), .to = back}, *backend).model_type, "deepseek_v3");
    test::expect_same_tensors(hub.path(), back);
    const json written = read_json(back / "config.json");
    for (const auto& [key, value] : config.items())
      if (written.contains(key)) { EXPECT_EQ(written.at(key), value) << key; }
    EXPECT_FALSE(written.contains("hearth_config")) << written["hearth_config"];
    EXPECT_TRUE(ModelSource::open(back).config() == ModelSource::open(hub.path()).config());
    expect_logits(back, hub.want);
  }
}

// Files of the bare model have names without a prefix, and copies may be of another type.
TEST(MtpFiles, TakeOtherNamesAndTypes) {
  Hub hub(with_modules(1));
  for (TensorToWrite& t : hub.tensors)
    if (t.name.starts_with("model.")) t.name = t.name.substr(6);
  TensorToWrite& copy = hub.tensor("layers.3.embed_tokens.weight");
  copy.dtype = DType::f64;
  copy.produce = [single = copy.produce](const ByteSink& sink) {
    std::vector<std::byte> bytes;
    single([&](Bytes b) { bytes.insert(bytes.end(), b.begin(), b.end()); });
    std::vector<double> wide(bytes.size() / sizeof(float));
    for (size_t i = 0; i < wide.size(); ++i) {
      float x = 0;
      std::memcpy(&x, bytes.data() + i * sizeof x, sizeof x);
      wide[i] = double(x);
    }
    sink(std::as_bytes(std::span(wide)));
  };
  hub.write();
  expect_logits(hub.path(), hub.want);
}

TEST(MtpFiles, DraftWithoutChangingAToken) {
  for (const json& config : configs()) {
    const Hub hub(config);
    test::LoadedModel m(ModelSource::open(hub.path()), cpu);
    std::vector<Request> requests;
    for (const uint64_t seed : {0, 1, 2})
      requests.push_back(
          {.prompt = some_tokens(),
           .sampling = {.temperature = seed ? 1.3f : 0, .seed = seed, .max_tokens = 20}});
    Engine plain(m.config, m.params, *m.backend, {.max_batch = 1, .exact = true});
    Engine drafts(m.config, m.params, *m.backend,
                  {.max_batch = 3, .speculate = 3, .draft = Draft::mtp, .exact = true});
    const auto want = plain.run(requests), got = drafts.run(requests);
    for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(got[i][0].tokens, want[i][0].tokens);
    EXPECT_GT(drafts.stats().drafted, 20);
  }
}

// transformers writes the key but not the layers.
TEST(MtpFiles, MayAllBeAbsent) {
  Hub hub(with_modules(2));
  std::erase_if(hub.tensors, [](const TensorToWrite& t) { return is_past_layers(t.name, 3); });
  hub.write();
  EXPECT_EQ(ModelSource::open(hub.path()).config().mtp, 0);
  EXPECT_EQ(hub.refusal(), "");
}

TEST(MtpFiles, RefuseAPartOfTheTensors) {
  for (const char* name :
       {"model.layers.4.embed_tokens.weight", "model.layers.3.enorm.weight",
        "model.layers.4.hnorm.weight", "model.layers.3.eh_proj.weight",
        "model.layers.3.shared_head.norm.weight", "model.layers.3.shared_head.head.weight",
        "model.layers.4.self_attn.kv_b_proj.weight", "model.layers.4.mlp.experts.7.up_proj.weight",
        "model.layers.3.mlp.gate.e_score_correction_bias"}) {
    Hub hub(with_modules(2));
    std::erase_if(hub.tensors, [&](const TensorToWrite& t) { return t.name == name; });
    hub.write();
    expect_error(hub.refusal(), fmt::format("the tensor {} (", name));
  }
}

TEST(MtpFiles, RefuseCopiesThatDiffer) {
  for (const auto& [name, own] :
       {std::pair<std::string, std::string>{"embed_tokens", "model.embed_tokens.weight"},
        {"shared_head.head", "lm_head.weight"}}) {
    Hub hub(with_modules(1));
    TensorToWrite& copy = hub.tensor("model.layers.3." + name + ".weight");
    const std::vector<float> zeros(size_t(copy.shape[0] * copy.shape[1]), 0);
    copy.produce = [&](const ByteSink& sink) { sink(std::as_bytes(std::span(zeros))); };
    hub.write();
    expect_error(hub.refusal(), fmt::format("expected model.layers.3.{}.weight to equal {}, of "
                                            "which it is a copy, got other values",
                                            name, own));
  }
}

TEST(MtpFiles, RefuseAnotherNumberThanTheConfigs) {
  const auto refusal = [](int64_t layers, int64_t claimed) {
    const Hub hub(with_modules(layers));
    write_file_atomic(hub.path() / "config.json", with_modules(claimed).dump());
    return hub.refusal();
  };
  expect_error(refusal(2, 1),
               "expected only the tensors of its config, but found \"model.layers.4.");
  expect_error(refusal(1, 0),
               "expected only the tensors of its config, but found \"model.layers.3.");
  expect_error(refusal(1, 2), "the tensor model.layers.4.embed_tokens.weight (");
  expect_error(refusal(1, 4), "expected num_nextn_predict_layers between 0 and 3, got 4");
  expect_error(refusal(1, -1), "expected num_nextn_predict_layers between 0 and 3, got -1");
}

TEST(MtpFiles, AreLeftOutOfGguf) {
  const auto backend = make_cpu_backend(1);
  json config = with_modules(1);
  config["rms_norm_eps"] = 1e-6;
  const Hub hub(config);
  const Converted c = convert_model({.from = hub.path(), .gguf = hub.dir / "m.gguf"}, *backend);
  EXPECT_EQ(c.left_out, 1);
  const ModelConfig read = ModelSource::open(hub.dir / "m.gguf").config();
  EXPECT_EQ(read.mtp, 0);
  EXPECT_EQ(c.params, count_params(read));
  EXPECT_LT(c.params, count_params(ModelSource::open(hub.path()).config()));
  const Converted both = convert_model(
      {.from = hub.path(), .to = hub.dir / "hf", .gguf = hub.dir / "both.gguf"}, *backend);
  EXPECT_EQ(both.params, count_params(ModelSource::open(hub.dir / "hf").config()));
  test::LoadedModel all(ModelSource::open(hub.path()), cpu),
      rest(ModelSource::open(hub.dir / "m.gguf"), cpu);
  std::vector<int32_t> positions(static_cast<size_t>(T));
  std::iota(positions.begin(), positions.end(), 0);
  const auto logits = [&](test::LoadedModel& m) {
    return test::LogitsProgram(m, 1, T).run(some_tokens(), positions);
  };
  EXPECT_EQ(logits(all), logits(rest));
}

}  // namespace
}  // namespace hearth
