// Adapters on disk: PEFT's layout in and out, merging, and what is refused.
#include "formats/json.h"
#include "lora_model.h"
#include "model/files/adapter.h"
#include "model/files/convert.h"
#include "model/files/folder.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::error_of;
using test::expect_error;
using test::TempDir;

struct Folders {
  TempDir dir;
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  Adapted m;
  explicit Folders(const ModelConfig& c) : m(*backend, c) {
    const fs::path base = dir / "base";
    make_dirs(base), make_dirs(dir / "adapter");
    write_file_atomic(base / "config.json", hf_config_json(base_of(c), DType::f32, 1, 2));
    write_safetensors_model(base, hf_tensors(base_of(c), m.params, DType::f32));
    write_adapter(dir / "adapter", c, m.params, base.string());
  }
};

TEST(LoraFiles, RoundTripInPeftsLayout) {
  for (const NamedShape& s : shapes()) {
    SCOPED_TRACE(s.name);
    Folders f(s.config);
    const ModelSource source = ModelSource::open(f.dir / "base", f.dir / "adapter");
    EXPECT_EQ(source.config().lora.scale(), s.config.lora.scale());
    TinyModel other(*f.backend, source.config(), 1);
    source.load(other.params);
    ASSERT_EQ(other.params.specs().size(), f.m.params.specs().size());
    for (const ParamSpec& p : f.m.params.specs())
      EXPECT_EQ(f.m.params.values(Part::weight, p.name), other.params.values(Part::weight, p.name))
          << p.name;
    EXPECT_EQ(f.m.all_logits(tiny_prompt(9)), other.all_logits(tiny_prompt(9)));
  }
}

TEST(LoraFiles, NamesShapesAndKeys) {
  Folders llama(shapes()[3].config), gpt2(shapes()[0].config);
  const Safetensors a(llama.dir / "adapter/adapter_model.safetensors");
  EXPECT_EQ(a.tensors().size(), 8u);
  const std::string layer = "base_model.model.model.layers.1.self_attn.";
  EXPECT_EQ(a.at(layer + "q_proj.lora_A.weight").shape, (std::vector<int64_t>{4, 16}));
  EXPECT_EQ(a.at(layer + "q_proj.lora_B.weight").shape, (std::vector<int64_t>{16, 4}));
  EXPECT_EQ(a.at(layer + "v_proj.lora_B.weight").shape, (std::vector<int64_t>{8, 4}));
  const json j = read_json(llama.dir / "adapter/adapter_config.json");
  EXPECT_EQ(j.at("peft_type"), "LORA");
  EXPECT_EQ(j.at("task_type"), "CAUSAL_LM");
  EXPECT_EQ(j.at("r"), 4);
  EXPECT_EQ(j.at("lora_alpha"), 2);
  EXPECT_EQ(j.at("use_rslora"), true);
  EXPECT_EQ(j.at("fan_in_fan_out"), false);
  EXPECT_EQ(j.at("target_modules"), json({"q_proj", "v_proj"}));
  EXPECT_EQ(j.at("base_model_name_or_path"), (llama.dir / "base").string());

  const Safetensors b(gpt2.dir / "adapter/adapter_model.safetensors");
  EXPECT_EQ(b.at("base_model.model.transformer.h.0.attn.c_attn.lora_B.weight").shape,
            (std::vector<int64_t>{48, 3}));
  const json g = read_json(gpt2.dir / "adapter/adapter_config.json");
  EXPECT_EQ(g.at("fan_in_fan_out"), true);
  EXPECT_EQ(g.at("target_modules"), json({"c_attn", "c_proj", "c_fc"}));
}

// PEFT gives adapters to modules whose path ends in a target, and a module there is of one expert.
TEST(LoraFiles, ExpertsAreNamedAsInPeft) {
  ModelConfig c;
  for (const NamedShape& s : shapes())
    if (s.name == std::string_view("qwen3_moe")) c = s.config;
  Folders f(c);
  const fs::path file = f.dir / "adapter/adapter_config.json";
  json j = read_json(file);
  const std::vector<std::string> written = j.at("target_modules");
  const Safetensors tensors(f.dir / "adapter/adapter_model.safetensors");
  for (const auto& [name, tensor] : tensors.tensors()) {
    const std::string module = name.substr(0, name.find(".lora_"));
    EXPECT_TRUE(std::ranges::any_of(written, [&](const std::string& t) {
      return module.ends_with("." + t);
    })) << module;
  }
  const auto opened = [&](const json& targets) {
    j["target_modules"] = targets;
    write_file_atomic(file, j.dump());
    return AdapterSource::open(f.dir / "adapter", base_of(c));
  };
  // A name without a number means the modules of experts too, as PEFT writes it.
  const json short_names{"q_proj",    "k_proj",  "v_proj",   "o_proj",
                         "gate_proj", "up_proj", "down_proj"};
  TinyModel other(*f.backend, c, 1);
  opened(short_names).load(other.params);
  for (const ParamSpec& p : f.m.params.specs())
    if (is_adapter(p.name)) {
      EXPECT_EQ(f.m.params.values(Part::weight, p.name), other.params.values(Part::weight, p.name))
          << p.name;
    }
  json some = written;
  some.erase(std::ranges::find(some, "experts.2.up_proj"));
  expect_error(error_of([&] { opened(some); }),
               "expected experts.up_proj of all 4 experts among the targets, got those of 3");
}

TEST(LoraFiles, ATargetThatNamesNothingSaysTheOnesOfExperts) {
  ModelConfig mixture = with_experts(qwen3_shape(), 4, 0), dense = qwen3_shape();
  mixture.lora = dense.lora = {.rank = 2, .alpha = 2, .targets = {"gate_proj"}};
  expect_error(error_of([&] { lora_matrices(mixture); }),
               "got \"gate_proj\"; experts.gate_proj adapts that matrix of all experts");
  dense.lora.targets = {"experts"};
  expect_error(error_of([&] { lora_matrices(dense); }),
               "got \"experts\"; this model has no experts");
}

// W + scale B A of the files' own tensors is what the merged folder holds, whatever the order of
// rows and columns in there.
TEST(LoraFiles, MergeIsPeftsFormulaOnTheFiles) {
  for (const NamedShape& s : shapes()) {
    SCOPED_TRACE(s.name);
    Folders f(s.config);
    const Converted done =
        convert_model({.to = f.dir / "merged", .adapter = f.dir / "adapter"}, *f.backend);
    EXPECT_EQ(done.params, count_params(base_of(s.config)));
    const Safetensors base(f.dir / "base"), merged(f.dir / "merged"),
        adapter(f.dir / "adapter/adapter_model.safetensors");
    ASSERT_EQ(base.tensors().size(), merged.tensors().size());
    const auto floats = [](const StoredTensor& t) {
      std::vector<float> v(size_t(t.numel()));
      std::memcpy(v.data(), t.bytes.data(), t.bytes.size());
      return v;
    };
    size_t touched = 0;
    for (const auto& [name, tensor] : base.tensors()) {
      std::vector<float> want = floats(tensor);
      const std::string module = "base_model.model." + name.substr(0, name.rfind('.'));
      const StoredTensor* at = adapter.find(module + ".lora_A.weight");
      if (at && name.ends_with(".weight")) {
        ++touched;
        const std::vector<float> A = floats(*at), B = floats(adapter.at(module + ".lora_B.weight"));
        const int64_t r = at->shape[0], in = at->shape[1], out = int64_t(B.size()) / r;
        const bool conv1d = std::string_view(s.name).starts_with("gpt2");
        for (int64_t o = 0; o < out; ++o)
          for (int64_t i = 0; i < in; ++i) {
            double x = 0;
            for (int64_t k = 0; k < r; ++k)
              x += double(B[size_t(o * r + k)]) * A[size_t(k * in + i)];
            want[size_t(conv1d ? i * out + o : o * in + i)] += float(x * s.config.lora.scale());
          }
      }
      const bool stacked =
          name.ends_with(".experts.up.weight") || name.ends_with(".experts.down.weight");
      if (!stacked) { EXPECT_LT(worst_difference(floats(merged.at(name)), want), 1e-6) << name; }
    }
    // Our own layout stacks experts; what is merged there shows in the logits.
    if (!std::string_view(s.name).starts_with("hearth_")) {
      EXPECT_EQ(2 * touched, adapter.tensors().size());
    }
    // As a model it is the unmerged one within rounding.
    const ModelSource source = ModelSource::open(f.dir / "merged");
    TinyModel m(*f.backend, source.config(), 1);
    source.load(m.params);
    const std::vector<float> want = f.m.all_logits(tiny_prompt(9));
    EXPECT_LT(worst_difference(m.all_logits(tiny_prompt(9)), want), 1e-5 * largest(want));
  }
}

TEST(LoraFiles, TakesShardsAndOtherDtypes) {
  Folders f(shapes()[2].config);
  const fs::path dir = f.dir / "adapter", whole = dir / "adapter_model.safetensors";
  for (const DType dtype : {DType::bf16, DType::f16, DType::f64}) {
    write_adapter(dir, f.m.config, f.m.params, "x", dtype);
    TinyModel other(*f.backend, f.m.config, 7);
    AdapterSource::open(dir, base_of(f.m.config)).load(other.params);
    const std::string name = "blocks.0.mlp.up.lora_B";
    EXPECT_LT(worst_difference(other.params.values(Part::weight, name),
                               f.m.params.values(Part::weight, name)),
              dtype == DType::f64 ? 1e-30 : 0.01);
  }
  // Two files and an index.
  json index;
  {
    const Safetensors all(whole);
    std::vector<TensorToWrite> parts[2];
    size_t i = 0;
    for (const auto& [name, t] : all.tensors()) {
      index["weight_map"][name] = i % 2 ? "b.safetensors" : "a.safetensors";
      parts[i++ % 2].push_back(tensor_to_write(name, t));
    }
    write_safetensors(dir, "a.safetensors", parts[0]);
    write_safetensors(dir, "b.safetensors", parts[1]);
  }
  fs::remove(whole);
  write_file_atomic(dir / "adapter_model.safetensors.index.json", index.dump());
  TinyModel other(*f.backend, f.m.config, 7);
  AdapterSource::open(dir, base_of(f.m.config)).load(other.params);
  EXPECT_EQ(other.all_logits(tiny_prompt(5)), f.m.all_logits(tiny_prompt(5)));
}

TEST(LoraFiles, RefusesByNameWhatItDoesNotCompute) {
  const json good = json::parse(
      R"({"peft_type": "LORA", "r": 4, "lora_alpha": 16, "lora_dropout": 0.05, "bias": "none",
          "target_modules": ["q_proj", "v_proj"], "use_dora": false, "modules_to_save": null,
          "rank_pattern": {}, "loftq_config": {}, "megatron_core": "megatron.core",
          "peft_version": "0.18.0", "task_type": "CAUSAL_LM", "init_lora_weights": true,
          "some_new_key": false, "fan_in_fan_out": false, "base_model_name_or_path": "m"})");
  EXPECT_EQ(adapter_from_json(good, "c").lora,
            (LoraSpec{.rank = 4, .alpha = 16, .dropout = 0.05f, .targets = {"q_proj", "v_proj"}}));
  const auto message = [&](const char* key, json value) {
    json j = good;
    if (value.is_discarded())
      j.erase(key);
    else
      j[key] = std::move(value);
    return error_of([&] { adapter_from_json(j, "c"); });
  };
  expect_error(message("use_dora", true),
               "[c] adapters with \"use_dora\" (here \"true\") are not supported");
  expect_error(message("bias", "all"), "adapters with \"bias\"");
  expect_error(message("modules_to_save", {"lm_head"}), "adapters with \"modules_to_save\"");
  expect_error(message("rank_pattern", {{"q_proj", 2}}), "adapters with \"rank_pattern\"");
  expect_error(message("layers_to_transform", {0}), "adapters with \"layers_to_transform\"");
  expect_error(message("init_lora_weights", "pissa"), "adapters with \"init_lora_weights\"");
  expect_error(message("some_new_key", 3), "adapters with \"some_new_key\"");
  expect_error(message("peft_type", "IA3"), "[c] expected peft_type LORA, got \"\\\"IA3\\\"\"");
  expect_error(message("target_modules", ".*attn.*"), "target_modules to be a list of names");
  expect_error(message("target_modules", json::array()), "target_modules to be a list of names");
  expect_error(message("r", 0), "[c] expected a rank from 1 to 8192, got 0");
  expect_error(message("r", "4"), "[c.r] expected a whole number");
  expect_error(message("r", json(json::value_t::discarded)), "[c] the key r is missing");
  expect_error(message("lora_dropout", 1), "expected a dropout in [0, 1), got 1");
  EXPECT_EQ(message("target_modules", "all-linear"), "");
  EXPECT_EQ(message("init_lora_weights", "gaussian"), "");
}

TEST(LoraFiles, DamagedFoldersAreOneLine) {
  Folders f(shapes()[3].config);
  const ModelConfig base = base_of(f.m.config);
  const fs::path dir = f.dir / "adapter";
  const auto message = [&] { return error_of([&] { AdapterSource::open(dir, base); }); };
  const std::string config = read_file(dir / "adapter_config.json");
  nlohmann::json moved = nlohmann::json::parse(config);
  moved["base_model_name_or_path"] = "no/such/model";
  write_file_atomic(dir / "adapter_config.json", moved.dump());
  expect_error(error_of([&] { ModelSource::open(dir); }),
               "the base model of this adapter, \"no/such/model\", was not found");
  moved["base_model_name_or_path"] = "../base";  // from the adapter's folder
  write_file_atomic(dir / "adapter_config.json", moved.dump());
  EXPECT_EQ(ModelSource::open(dir).adapter(), dir);
  EXPECT_TRUE(ModelSource::open(dir).config().lora);
  EXPECT_FALSE(ModelSource::open(dir).merged().config().lora);
  expect_error(error_of([&] { ModelSource::open(dir, dir); }),
               "expected a base model for the adapter");
  // One that names itself, with the digest of that, is no way to loop for ever.
  moved["base_model_name_or_path"] = ".";
  write_file_atomic(dir / "adapter_config.json", moved.dump());
  EXPECT_FALSE(error_of([&] { ModelSource::open(dir); }).empty());
  make_dirs(dir / "state");
  write_file_atomic(dir / "state" / "trainer.json", R"({"base": "00"})");
  expect_error(error_of([&] { ModelSource::open(dir); }), "is not the one this adapter");
  fs::remove_all(dir / "state");
  write_file_atomic(dir / "adapter_config.json", config);
  expect_error(error_of([&] { AdapterSource::open(f.dir / "base", base); }),
               "this folder holds no adapter: it has no adapter_config.json");
  expect_error(error_of([&] { AdapterSource::open(dir, gpt2_shape()); }),
               "[lora] expected targets among c_attn, c_proj, c_fc or all-linear, got \"q_proj\"");
  ModelConfig narrow = base;
  narrow.kv_heads = 1;
  expect_error(error_of([&] { AdapterSource::open(dir, narrow); }),
               "v_proj.lora_B.weight to be (4, 4), got (8, 4)");

  std::vector<TensorToWrite> tensors;
  const float zero[16 * 4] = {};
  const auto write = [&](const std::string& name, std::vector<int64_t> shape, DType d) {
    tensors.push_back({name, d, std::move(shape),
                       [&zero](const ByteSink& sink) { sink(std::as_bytes(std::span(zero))); }});
    fs::remove(dir / "adapter_model.safetensors");
    write_safetensors(dir, "adapter_model.safetensors", tensors);
  };
  const std::string first = "base_model.model.model.layers.0.self_attn.q_proj.";
  write(first + "lora_A.weight", {4, 16}, DType::f32);
  expect_error(message(), "the tensor " + first + "lora_B.weight (16, 4) is missing");
  write(first + "lora_B.weight", {16, 4}, DType::i32);
  expect_error(message(), "expected " + first + "lora_B.weight in a float type, got i32");

  write_adapter(dir, f.m.config, f.m.params, "gone");
  json j = read_json(dir / "adapter_config.json");
  j["target_modules"] = {"q_proj", "lm_head"};  // PEFT lets a list name what is not there
  write_file_atomic(dir / "adapter_config.json", j.dump());
  expect_error(message(), "expected only lora_A and lora_B of the targets, but found");
  fs::remove(dir / "adapter_model.safetensors");
  write_file_atomic(dir / "adapter_model.bin", std::string_view("x"));
  expect_error(message(), "got only adapter_model.bin, which is not supported");
  expect_error(error_of([&] { convert_model({.to = f.dir / "out", .adapter = dir}, *f.backend); }),
               "the base model of this adapter, \"gone\", was not found");
}

}  // namespace
}  // namespace hearth
