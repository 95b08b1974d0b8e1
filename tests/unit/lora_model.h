// Small models with adapters, one for each layout of files.
#pragma once

#include <cmath>

#include "infer_model.h"
#include "model/lora.h"

namespace hearth {

inline ModelConfig with_lora(ModelConfig c, LoraSpec lora) {
  c.lora = std::move(lora);
  return c.resolve();
}

inline ModelConfig gpt2_shape() { return tiny_configs()[1]; }
inline ModelConfig qwen3_shape() {
  ModelConfig c = tiny_config();
  c.qk_norm = QkNorm::before_rope, c.head_dim = 6;
  return c;
}
inline ModelConfig interleaved_shape() {  // as in llama2.c; files store q and k permuted
  ModelConfig c = tiny_config();
  c.rope_pairs = RopePairs::interleaved;
  return c;
}

inline ModelConfig neox_shape() {  // q, k and v of one head after another in files
  ModelConfig c = tiny_config();
  c.norm = Norm::layer, c.norm_bias = c.mlp_bias = c.qkv_bias = c.out_bias = true, c.kv_heads = 0;
  c.parallel_residual = true, c.rotary = 0.5f, c.act = Act::gelu_erf;
  return c;
}
inline ModelConfig phi3_shape() {  // packed q, k and v, and packed gate and up
  ModelConfig c = interleaved_shape();
  c.layout = "phi3";
  return c;
}

inline ModelConfig with_experts(ModelConfig c, int64_t experts, int64_t shared) {
  c.moe.experts = experts, c.moe.shared_experts = shared;
  return c;
}

struct NamedShape {
  const char* name;
  ModelConfig config;
};
inline std::vector<NamedShape> shapes() {
  const LoraSpec all{.rank = 3, .alpha = 5};
  return {
      {"gpt2", with_lora(gpt2_shape(), all)},
      {"gpt2_some", with_lora(gpt2_shape(), {.rank = 2, .alpha = 4, .targets = {"c_attn"}})},
      {"llama", with_lora(tiny_config(), all)},
      {"llama_some",
       with_lora(tiny_config(),
                 {.rank = 4, .alpha = 2, .rslora = true, .targets = {"q_proj", "v_proj"}})},
      {"qwen3", with_lora(qwen3_shape(), all)},
      {"interleaved", with_lora(interleaved_shape(), all)},
      {"gpt_neox", with_lora(neox_shape(), all)},
      {"phi3", with_lora(phi3_shape(), all)},
      {"hearth", with_lora(tiny_configs()[3], all)},
      {"qwen3_moe", with_lora(with_experts(qwen3_shape(), 4, 0),
                              {.rank = 3, .alpha = 5, .targets = {"all-linear", "experts"}})},
      {"qwen3_moe_layer",
       with_lora(
           with_experts(qwen3_shape(), 4, 0),
           {.rank = 2, .alpha = 3, .targets = {"all-linear", "layers.1.mlp.experts.gate_proj"}})},
      {"mixtral_some", with_lora(with_experts(tiny_config(), 3, 0),
                                 {.rank = 2, .alpha = 1, .targets = {"experts.w3"}})},
      {"hearth_layer",
       with_lora(with_experts(tiny_configs()[3], 3, 1),
                 {.rank = 2, .alpha = 5, .targets = {"all-linear", "blocks.1.mlp.experts.up"}})},
      {"hearth_experts", with_lora(with_experts(tiny_configs()[3], 3, 1),
                                   {.rank = 2, .alpha = 5, .targets = {"qkv", "experts"}})}};
}

// A model whose adapters have an effect.
struct Adapted : TinyModel {
  Adapted(Backend& b, const ModelConfig& c, DType dtype = DType::f32) : TinyModel(b, c, 7, dtype) {
    for (const ParamSpec& p : params.specs()) {
      if (!is_adapter(p.name)) continue;
      std::vector<float> v(size_t(p.shape.numel()));
      draw(v, Init::normal(0.3f), 9, p.name);
      params.set(p.name, v);
    }
  }
};

inline ModelConfig base_of(ModelConfig c) {
  c.lora = {};
  return c;
}

// The base model of `m` alone, in a separate store.
inline std::unique_ptr<TinyModel> base_of(TinyModel& m) {
  auto base = std::make_unique<TinyModel>(m.backend, base_of(m.config), 7, m.params.dtype());
  for (const ParamSpec& p : base->params.specs())
    base->params.set(p.name, m.params.values(Part::weight, p.name));
  return base;
}

// Infinite if there is a NaN or the sizes differ.
inline double worst_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double e = std::abs(double(a[i]) - b[i]);
    worst = std::isnan(e) ? INFINITY : std::max(worst, e);
  }
  return worst;
}
inline double largest(const std::vector<float>& a) {
  return worst_difference(a, std::vector(a.size(), 0.f));
}

}  // namespace hearth
