// The tensors of families in files as the hub has them: other names, incomplete sets, gemma's
// gains.
#include "cpu/backend.h"
#include "family_reference.h"
#include "model/decoder.h"
#include "model/files/convert.h"
#include "model/files/folder.h"
#include "unit/family_keys.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

using nlohmann::json;
using test::error_of, test::expect_error;
using test::FamilyReference;
using test::gemma_keys, test::llama_keys, test::neox_keys;
using test::TempDir;

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

// transformers' default where a config asks for windows and does not say how wide.
TEST(FamilyFiles, QwensWindowsAreOf4096Tokens) {
  for (const char* type : {"qwen2", "qwen3"}) {
    json keys = llama_keys(type);
    keys.update({{"use_sliding_window", true}, {"max_window_layers", 1}});
    EXPECT_EQ(config_from_hf_json(keys, type).window, 4096);
    keys["sliding_window"] = nullptr;
    EXPECT_EQ(config_from_hf_json(keys, type).window, 0);
  }
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
  const ModelConfig c = config_from_hf_json(keys, "config.json");
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
