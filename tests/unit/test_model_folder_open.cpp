// Model folders as others have them: what opens, and what is refused by name.
#include <cstring>

#include "formats/checkpoint_dir.h"
#include "model/files/folder.h"
#include "unit/model_folder.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using namespace test;

// The tensors of a saved model, ready to be changed and written again.
struct Saved {
  explicit Saved(const ModelConfig& c) : config(c), weights(c) {
    fill(weights.params);
    tensors = save(dir / "m", c, weights.params);
  }
  fs::path write() {
    write_safetensors_model(dir / "m", tensors);
    return dir / "m";
  }
  TensorToWrite& at(std::string_view name) {
    for (TensorToWrite& t : tensors)
      if (t.name == name) return t;
    throw std::runtime_error("no tensor " + std::string(name));
  }
  void add(const std::string& name, std::vector<int64_t> shape, DType d = DType::f32,
           float value = 1) {
    int64_t n = 1;
    for (int64_t dim : shape) n *= dim;
    tensors.push_back({name, d, shape, [n, d, value](const ByteSink& sink) {
                         std::vector<std::byte> bytes(size_t(n * size_of(d)));
                         if (d == DType::f32)
                           for (int64_t i = 0; i < n; ++i)
                             std::memcpy(bytes.data() + 4 * i, &value, 4);
                         sink(bytes);
                       }});
  }
  std::string open_error() {
    return error_of([&] { ModelSource::open(write()); });
  }
  TempDir dir;
  ModelConfig config;
  Weights weights;
  std::vector<TensorToWrite> tensors;
};

TEST(ModelFolder, AcceptsTheHubFileOfGpt2) {
  Saved s(gpt2_like());
  for (TensorToWrite& t : s.tensors) t.name = t.name.substr(std::string("transformer.").size());
  for (const char* layer : {"h.0.", "h.1."}) {
    s.add(std::string(layer) + "attn.bias", {1, 1, 24, 24});
    s.add(std::string(layer) + "attn.masked_bias", {}, DType::u8);
  }
  TensorToWrite head = s.at("wte.weight");
  head.name = "lm_head.weight";
  s.tensors.push_back(head);
  Weights b(s.config);
  ModelSource::open(s.write()).load(b.params);
  expect_same_params(s.weights.params, b.params);
}

TEST(ModelFolder, RefusesATiedHeadThatDiffers) {
  Saved s(llama_like());
  s.add("lm_head.weight", {41, 24});
  expect_error(s.open_error(), "expected lm_head.weight to equal model.embed_tokens.weight");
}

TEST(ModelFolder, NamesAMissingTensor) {
  Saved s(llama_like());
  std::erase_if(s.tensors,
                [](const auto& t) { return t.name == "model.layers.1.self_attn.k_proj.weight"; });
  expect_error(s.open_error(),
               "the tensor model.layers.1.self_attn.k_proj.weight (20, 24) is missing");
}

TEST(ModelFolder, NamesASurplusTensor) {
  Saved s(llama_like());
  s.add("model.layers.0.self_attn.q_norm.weight", {10});
  expect_error(s.open_error(), "but found \"model.layers.0.self_attn.q_norm.weight\"");
}

TEST(ModelFolder, NamesAMisshapenTensor) {
  Saved s(gpt2_like());
  s.at("transformer.h.0.attn.c_attn.weight").shape = {60, 20};  // (out, in): not a Conv1D
  expect_error(s.open_error(),
               "expected transformer.h.0.attn.c_attn.weight to be (20, 60), got (60, 20)");
}

TEST(ModelFolder, NamesATensorOfWholeNumbers) {
  Saved s(llama_like());
  s.at("model.norm.weight").dtype = DType::i32;
  expect_error(s.open_error(), "expected model.norm.weight in a float type, got i32");
}

TEST(ModelFolder, NamesABiasThatShouldBeZero) {
  ModelConfig c = llama_like();
  c.qkv_bias = c.mlp_bias = true;
  Saved s(c);
  std::erase_if(s.tensors,
                [](const auto& t) { return t.name == "model.layers.1.self_attn.o_proj.bias"; });
  s.add("model.layers.1.self_attn.o_proj.bias", {24});
  const ModelSource source = ModelSource::open(s.write());
  Weights b(c);
  expect_error(error_of([&] { source.load(b.params); }),
               "expected model.layers.1.self_attn.o_proj.bias to be zero");
}

TEST(ModelFolder, RefusesAStoreOfAnotherModel) {
  Saved s(llama_like());
  const ModelSource source = ModelSource::open(s.write());
  ModelConfig other = llama_like();
  other.tied = false;
  Weights more(other);
  expect_error(error_of([&] { source.load(more.params); }),
               "no tensor for the parameter head.weight");
  other = llama_like(), other.layers = 1;
  Weights fewer(other);
  expect_error(error_of([&] { source.load(fewer.params); }), "the file has tensors for blocks.1");
}

// --- runs and checkpoints ---

TEST(ModelFolder, OpensTheNewestWholeCheckpointOfARun) {
  const ModelConfig c = llama_like();
  Weights a(c);
  TempDir run;
  make_dirs(run / "checkpoints");
  for (int64_t step : {1, 2, 3}) {
    a.params.initialise(uint64_t(step));
    CheckpointWriter w(run / "checkpoints", step_name(step));
    save(w.dir(), c, a.params);
    w.commit();
  }
  set_link(run.path(), "latest", fs::path("checkpoints") / step_name(3));
  EXPECT_EQ(ModelSource::open(run.path()).path(), run / "checkpoints" / step_name(3));
  EXPECT_TRUE(ModelSource::open(run / "latest").config() == c);

  const fs::path newest = run / "checkpoints" / step_name(3) / "model.safetensors";
  std::string bytes = read_file(newest);
  bytes.back() = char(bytes.back() ^ 1);
  write_file_atomic(newest, bytes);
  expect_error(error_of([&] { ModelSource::open(run / "latest"); }),
               "expected a complete checkpoint");
  testing::internal::CaptureStderr();
  const ModelSource source = ModelSource::open(run.path());
  EXPECT_NE(testing::internal::GetCapturedStderr().find("hearth: skipped "), std::string::npos);
  EXPECT_EQ(source.path(), run / "checkpoints" / step_name(2));
  Weights b(c);
  source.load(b.params);
  a.params.initialise(2);
  expect_same_params(a.params, b.params);

  TempDir empty;
  make_dirs(empty / "checkpoints");
  expect_error(error_of([&] { ModelSource::open(empty.path()); }),
               "expected a complete checkpoint");
}

TEST(ModelFolder, SaysWhatItTakes) {
  TempDir dir;
  expect_error(error_of([&] { ModelSource::open(dir / "absent"); }),
               "got a path that does not exist");
  expect_error(error_of([&] { ModelSource::open(dir / "gpt2"); }),
               "got a path that does not exist; hearth data get gpt2 --out " +
                   (dir / "gpt2").string() + " downloads it");
  expect_error(error_of([&] { ModelSource::open(dir.path()); }), "config.json");
  for (const char* name : {"config.json", "adapter_config.json", "model.safetensors"}) {
    write_file_atomic(dir / name, R"({"model_type": "gpt2"})");
    expect_error(error_of([&] { ModelSource::open(dir / name); }),
                 "expected a model, got one file of it: pass its folder, " + dir.path().string());
    fs::remove(dir / name);
  }
  write_file_atomic(dir / "model.pt", "x");
  expect_error(error_of([&] { ModelSource::open(dir / "model.pt"); }),
               "got a file of another kind");
}

}  // namespace
}  // namespace hearth
