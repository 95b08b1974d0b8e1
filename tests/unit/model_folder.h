// Shared by the tests of model folders: small models of three layouts, their weights, saved ones.
#pragma once

#include <gtest/gtest.h>

#include "cpu/reference/reference.h"
#include "model/decoder.h"
#include "model/files/folder.h"
#include "sys/files/files.h"

namespace hearth::test {

inline ModelConfig gpt2_like() {
  ModelConfig c = preset("gpt2");
  c.vocab = 37, c.context = 24, c.layers = 2, c.dim = 20, c.heads = 4;
  c.kv_heads = 0, c.head_dim = 0, c.hidden = 0;
  return c.resolve();
}

inline ModelConfig llama_like() {  // GQA, head_dim free of dim / heads
  ModelConfig c;
  c.vocab = 41, c.context = 32, c.layers = 2, c.dim = 24, c.heads = 6, c.kv_heads = 2;
  c.head_dim = 10, c.hidden = 28, c.rope_theta = 5e5, c.norm_eps = 1e-5f;
  return c.resolve();
}

inline ModelConfig qwen3_like() {
  ModelConfig c = llama_like();
  c.qk_norm = QkNorm::before_rope;
  c.kv_heads = 1;
  return c;
}

struct Weights {
  std::unique_ptr<Backend> backend = make_reference_backend();
  ParamStore params;
  explicit Weights(const ModelConfig& c, DType d = DType::f32)
      : params(*backend, decoder_params(c), d) {}
};

// Every parameter different everywhere, biases and gains included.
inline void fill(ParamStore& p) {
  for (const ParamSpec& s : p.specs()) {
    std::vector<float> v(size_t(s.shape.numel()));
    draw(v, Init::normal(0.3f), 7, s.name);
    p.set(s.name, v);
  }
}

inline std::vector<TensorToWrite> save(const std::filesystem::path& dir, const ModelConfig& c,
                                       ParamStore& p, DType d = DType::f32,
                                       int64_t shard = 5'000'000'000) {
  make_dirs(dir);
  write_file_atomic(dir / "config.json", hf_config_json(c, d, 1, 2));
  write_file_atomic(dir / "generation_config.json", hf_generation_config_json(1, 2));
  auto tensors = hf_tensors(c, p, d);
  write_safetensors_model(dir, tensors, shard);
  return tensors;
}

inline void expect_same_params(ParamStore& a, ParamStore& b) {
  ASSERT_EQ(a.specs().size(), b.specs().size());
  for (const ParamSpec& s : a.specs())
    EXPECT_EQ(a.values(Part::weight, s.name), b.values(Part::weight, s.name)) << s.name;
}

}  // namespace hearth::test
