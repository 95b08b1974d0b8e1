// Tiny random models for the tests of infer/, and their next logits computed without a cache.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "core/exec.h"
#include "cpu/backend.h"
#include "cpu/reference/reference.h"
#include "infer/engine.h"
#include "model/decoder.h"
#include "ops/record.h"
#include "text/tokenizer/vocabulary.h"

namespace hearth {

// Backends on which a sequence's logits must have the same bits in any batch and any chunks.
inline std::vector<std::unique_ptr<Backend>> exact_backends() {
  std::vector<std::unique_ptr<Backend>> all;
  all.push_back(make_reference_backend());
  all.push_back(make_cpu_backend(2));
  return all;
}

inline ModelConfig tiny_config() {
  ModelConfig c;
  c.vocab = 23, c.context = 24, c.layers = 2, c.dim = 16, c.heads = 4, c.kv_heads = 2,
  c.hidden = 24;
  // Far from uniform: greedy paths vary and log-probability gaps are wide.
  c.tied = false, c.init_std = 0.4f;
  return c;
}

// One of each kind of position, norm and mask that the cache must support.
inline std::vector<ModelConfig> tiny_configs() {
  std::vector<ModelConfig> all(4, tiny_config());
  all[1].position = Position::learned, all[1].norm = Norm::layer, all[1].norm_bias = true;
  all[1].act = Act::gelu_tanh, all[1].qkv_bias = all[1].out_bias = all[1].mlp_bias = true;
  all[1].kv_heads = 0, all[1].tied = true;
  all[2].position = Position::alibi, all[2].window = 5, all[2].window_pattern = "SL";
  all[2].attention_softcap = 8, all[2].logit_softcap = 6;
  all[3].qk_norm = QkNorm::before_rope, all[3].output_gate = OutputGate::per_head;
  all[3].norm_place = NormPlace::sandwich, all[3].rotary = 0.5f;
  return all;
}

// The same with room for several cache blocks, one with windows in all layers, one with layers that
// keep nothing in the cache, one whose values are wider than its keys, one with the skips, value
// embeddings and scales of fast recipes, three with the choices of gpt_neox, olmo2 and gemma3, one
// with experts, one with a bias by distance, and one with the long factors of longrope.
inline std::vector<ModelConfig> long_configs() {
  std::vector<ModelConfig> all = tiny_configs();
  all.push_back(tiny_config());
  all[4].window = 70;
  all.push_back(tiny_config());
  all[5].layers = 3, all[5].mixer_pattern = "NA", all[5].window = 70;
  all.push_back(tiny_config());
  all[6].v_head_dim = 7, all[6].qk_norm = QkNorm::after_rope;
  all.push_back(tiny_config());
  all[7].layers = 4, all[7].value_embeds = 1, all[7].value_residual = true;
  all[7].x0_skip = all[7].u_skips = all[7].embed_norm = true, all[7].norm_gain = false;
  all[7].qk_norm = QkNorm::before_rope, all[7].qk_norm_gain = false, all[7].rotary = 0.5f;
  all[7].window = 30, all[7].long_window = 90, all[7].window_pattern = "LSS";
  all[7].key_offset_pattern = "ONN";
  all[7].smear = true, all[7].bigram_embeds = 31;
  all[7].output_gate = OutputGate::per_head, all[7].gate_inputs = 8;
  all[7].act = Act::relu2, all[7].score_scale = 0.7f, all[7].logit_scale = 0.6f;
  all.push_back(tiny_config());
  all[8].norm = Norm::layer, all[8].norm_bias = all[8].mlp_bias = true, all[8].kv_heads = 0;
  all[8].parallel_residual = true, all[8].rotary = 0.5f, all[8].act = Act::gelu_erf;
  all[8].key_offset_pattern = "O";
  all.push_back(tiny_config());
  all[9].norm_place = NormPlace::after;
  all[9].qk_norm = QkNorm::before_rope, all[9].qk_norm_whole = true;
  all.push_back(tiny_config());
  all[10].embed_scale = 4, all[10].act = Act::geglu_tanh, all[10].norm_place = NormPlace::sandwich;
  all[10].qk_norm = QkNorm::before_rope, all[10].head_dim = 6, all[10].score_scale = 0.3f;
  all[10].layers = 3, all[10].window = 70, all[10].window_pattern = "SSL";
  all[10].rope_pattern = "LNR", all[10].rope_local_theta = 100, all[10].smear = true;
  all.push_back(tiny_config());
  all[11].layers = 3, all[11].moe.experts = 6, all[11].moe.shared_experts = 1;
  all[11].moe.first_dense_layers = 1, all[11].moe.router = Router::sigmoid;
  all[11].moe.router_bias = true, all[11].moe.router_scale = 1.5f;
  all.push_back(tiny_config());
  all[12].position = Position::relative, all[12].layers = 3, all[12].long_window = 90;
  all[12].relative_buckets = 8, all[12].relative_distance = 20, all[12].window = 30;
  all[12].window_pattern = "LSL", all[12].attention_softcap = 8;
  all.push_back(tiny_config());
  all[13].rope_scaling = RopeScaling::longrope, all[13].rope_context = 2;
  all[13].rope_attention_factor = 1.1f;
  all[13].rope_short_factors = "1,3", all[13].rope_long_factors = "2.5,60";
  for (ModelConfig& c : all) c.context = 256;
  return all;
}

// Latent attention: q from a latent and an output gate, with windows, and with YaRN.
inline std::vector<ModelConfig> latent_configs() {
  std::vector<ModelConfig> all(3, tiny_config());
  for (ModelConfig& c : all) {
    c.kv_heads = 0, c.mla = {.kv_latent = 10, .nope_dim = 6, .rope_dim = 4}, c.context = 256;
    c.v_head_dim = 5, c.rope_pairs = RopePairs::interleaved;
  }
  all[0].mla.q_latent = 7, all[0].output_gate = OutputGate::per_head;
  all[1].window = 70, all[1].v_head_dim = 0, all[1].qkv_bias = true;
  all[2].rope_scaling = RopeScaling::yarn, all[2].rope_factor = 4, all[2].rope_context = 64;
  all[2].rope_high = 32, all[2].mla.yarn_mscale = all[2].mla.yarn_mscale_all = 1;
  all[2].moe.experts = 4;
  return all;
}
// All of both kinds.
inline std::vector<ModelConfig> cached_configs() {
  std::vector<ModelConfig> all = long_configs();
  for (const ModelConfig& c : latent_configs()) all.push_back(c);
  return all;
}

struct TinyModel {
  TinyModel(Backend& b, const ModelConfig& c, uint64_t seed = 7, DType dtype = DType::f32,
            WeightFormat format = WeightFormat::plain)
      : backend(b), config(c.resolve()), params(b, decoder_params(c, format), dtype) {
    params.initialise(seed);
    for (const ParamSpec& p : params.specs()) {  // so that what starts at zero takes part
      if (!p.name.ends_with(".x0") && p.name != "smear.amount" && p.name != "bigrams.weight" &&
          !p.name.ends_with(".router.bias"))
        continue;
      std::vector<float> x(size_t(p.shape.numel()));
      draw(x, Init::uniform(0.5f), seed, p.name);
      params.set(p.name, x);
    }
  }

  // Logits after each of `tokens` (T, V), from the forward pass of training, without a cache.
  std::vector<float> all_logits(const std::vector<int32_t>& tokens) {
    const int64_t T = int64_t(tokens.size());
    Memory memory(backend, &params);
    Tape t(params.dtype());
    t.trains = std::ranges::all_of(params.specs(), &ParamSpec::plain);
    const Var hidden = decoder(t, config, declare_inputs(t, 1, T, false), {});
    const Var out = t.result("logits", {T, config.vocab}, DType::f32);
    record_gemm(t, {.c = out,
                    .a = t.view(hidden, {T, config.dim}),
                    .b = head_weight(t, config),
                    .spec = {.tb = true, .alpha = config.logit_scale}});
    Exec exec(std::move(t), memory);
    std::vector<int32_t> positions(tokens.size());
    for (size_t i = 0; i < positions.size(); ++i) positions[i] = int32_t(i);
    memory.state.write<int32_t>("main.tokens", tokens);
    memory.state.write<int32_t>("main.positions", positions);
    exec.run();
    backend.synchronize();
    std::vector<float> all(size_t(T * config.vocab));
    memory.state.read<float>("main.logits", all);
    if (const double cap = config.logit_softcap; cap > 0)
      for (float& x : all) x = float(cap * std::tanh(double(x) / cap));
    return all;
  }
  std::vector<float> logits(const std::vector<int32_t>& tokens) {  // after the last token
    const std::vector<float> all = all_logits(tokens);
    return {all.end() - config.vocab, all.end()};
  }

  // The log-probability that the engine reports for a token after this row, alone in its batch.
  TokenLogprob logprob(std::span<const float> row, int32_t token, int64_t top) {
    if (config.logit_softcap > 0) return token_logprob(row, token, top);
    int32_t best = int32_t(std::ranges::max_element(row) - row.begin());
    float log = 0;
    std::vector<float> copy(row.begin(), row.end());
    const auto tensor = [](auto* p, int64_t n, DType d) {
      return Tensor{reinterpret_cast<std::byte*>(p), {1, n}, d};
    };
    backend.kernels().cross_entropy(backend.stream(),
                                    {.nll = tensor(&log, 1, DType::f32),
                                     .logits = tensor(copy.data(), int64_t(row.size()), DType::f32),
                                     .targets = tensor(&best, 1, DType::i32)});
    return token_logprob(row, token, top, LogSum{row[size_t(best)], log});
  }

  // Negative log-likelihood of each token but the first, as training computes it.
  std::vector<float> nll(const std::vector<int32_t>& tokens) {
    const int64_t T = int64_t(tokens.size()) - 1;
    Memory memory(backend, &params);
    Tape t(params.dtype());
    const Var hidden = decoder(t, config, declare_inputs(t, 1, T, false), {});
    head_loss(t, hidden, head_weight(t, config), t.input("targets", {1, T}, DType::i32),
              {.scale = config.logit_scale, .softcap = config.logit_softcap});
    Exec exec(std::move(t), memory);
    std::vector<int32_t> positions;
    for (int32_t i = 0; i < T; ++i) positions.push_back(i);
    const std::span all(tokens);
    memory.state.write<int32_t>("main.tokens", all.first(size_t(T)));
    memory.state.write<int32_t>("main.positions", positions);
    memory.state.write<int32_t>("main.targets", all.last(size_t(T)));
    exec.run();
    std::vector<float> r(static_cast<size_t>(T));
    memory.state.read<float>("main.nll", r);
    return r;
  }

  // Decodes with the bits of training, except where a test asks for another way.
  Engine engine(EngineSpec spec = {}) {
    spec.exact = true;
    return Engine(config, params, backend, spec);
  }

  Backend& backend;
  ModelConfig config;
  ParamStore params;
};

// Every byte is a token; 256 is eos.
inline Tokenizer byte_tokenizer() {
  VocabularyParts parts{.where = "test"};
  for (int i = 0; i < 256; ++i) parts.tokens.push_back({std::string(1, char(i)), int32_t(i)});
  parts.added = {{"<|end|>", 256}};
  parts.eos = 256;
  return Tokenizer(make_vocabulary(std::move(parts)));
}

inline std::vector<int32_t> tiny_prompt(int64_t size, int32_t salt = 0) {
  std::vector<int32_t> p;
  for (int64_t i = 0; i < size; ++i) p.push_back(int32_t((i * i * 5 + i * 3 + salt * 7 + 1) % 23));
  return p;
}

}  // namespace hearth
