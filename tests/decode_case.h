// Decode steps of small models with a cache of random keys and values, for the tests of kernels
// that run a whole step: the same step on several backends, and with fp32 weights of equal values.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "infer/rope_rows.h"
#include "model/decoder.h"
#include "model/layer_spec.h"
#include "op_cases.h"
#include "ops/record.h"

namespace hearth::cases {

struct DecodeCase {
  std::string name;
  ModelConfig config;
  std::vector<int32_t> positions;  // of each row; negative: padding
  int64_t context = 128;
};

inline void PrintTo(const DecodeCase& c, std::ostream* out) { *out << c.name; }

inline ModelConfig decode_gpt2() {
  ModelConfig c;
  c.vocab = 90, c.layers = 2, c.dim = 64, c.heads = 4, c.hidden = 256, c.context = 1024;
  c.position = Position::learned, c.norm = Norm::layer, c.norm_bias = true;
  c.act = Act::gelu_tanh, c.qkv_bias = c.out_bias = c.mlp_bias = true;
  c.init_std = 0.1f;
  return c;
}

inline ModelConfig decode_llama() {
  ModelConfig c;
  c.vocab = 72, c.layers = 2, c.dim = 64, c.heads = 4, c.kv_heads = 2, c.head_dim = 32;
  c.hidden = 96, c.context = 1024, c.tied = false, c.init_std = 0.1f;
  return c;
}

// What families of models choose, one to eight rows, long contexts and windows.
inline std::vector<DecodeCase> decode_cases() {
  std::vector<DecodeCase> all;
  const auto add = [&](const char* name, ModelConfig c, std::vector<int32_t> positions,
                       int64_t context = 128) -> ModelConfig& {
    all.push_back({name, std::move(c), std::move(positions), context});
    return all.back().config;
  };
  add("gpt2", decode_gpt2(), {17});
  add("gpt2 of eight rows", decode_gpt2(), {0, 1, 5, 63, 64, 65, -1, 100});
  add("llama", decode_llama(), {70});
  add("llama of four rows", decode_llama(), {3, 64, 127, 0});
  add("llama of three rows", decode_llama(), {3, 64, 90});
  ModelConfig& qwen3 = add("qwen3", decode_llama(), {33, 80});
  qwen3.qk_norm = QkNorm::before_rope, qwen3.heads = 8, qwen3.head_dim = 16;
  ModelConfig& qwen2 = add("qwen2", decode_llama(), {40});
  qwen2.qkv_bias = true, qwen2.kv_heads = 1, qwen2.hidden = 1200;
  ModelConfig& neox = add("neox", decode_llama(), {9, 50});
  neox.norm = Norm::layer, neox.norm_bias = neox.mlp_bias = neox.qkv_bias = neox.out_bias = true;
  neox.parallel_residual = true, neox.rotary = 0.25f, neox.act = Act::gelu_erf, neox.kv_heads = 0;
  ModelConfig& mixed = add("six heads", decode_llama(), {77, 12});
  mixed.heads = 6, mixed.head_dim = 24, mixed.qk_norm = QkNorm::after_rope;
  mixed.rope_pairs = RopePairs::interleaved, mixed.rope_reverse = true, mixed.act = Act::geglu;
  mixed.attention_softcap = 5, mixed.logit_scale = 0.5f, mixed.attention_scale = 0.7f;
  ModelConfig& alibi = add("alibi", decode_llama(), {88, 30});
  alibi.position = Position::alibi, alibi.act = Act::relu2, alibi.norm_gain = false;
  ModelConfig& wide = add("a wide row", decode_gpt2(), {20, 4});
  wide.layers = 1, wide.dim = 1096, wide.heads = 8, wide.head_dim = 8, wide.hidden = 40;
  wide.norm_bias = false;
  ModelConfig& long_one = add("long context", decode_gpt2(), {1100}, 1152);
  long_one.heads = 2, long_one.head_dim = 16, long_one.context = 1152;
  ModelConfig& broad = add("wide heads", decode_llama(), {70, 20});
  broad.heads = 3, broad.kv_heads = 1, broad.head_dim = 200, broad.qk_norm = QkNorm::before_rope;
  add("around a split", decode_llama(), {254, 255, 256, 383}, 512).head_dim = 16;
  ModelConfig& window = add("window over splits", decode_llama(), {600, 290}, 640);
  window.window = 300, window.window_pattern = "SL", window.head_dim = 16;
  return all;
}

// The weights of a case, the same values in every dtype.
inline std::unique_ptr<ParamStore> decode_weights(Backend& b, const ModelConfig& config,
                                                  DType dtype) {
  const ModelConfig c = config.resolve();
  auto params = std::make_unique<ParamStore>(b, decoder_params(c), dtype);
  uint32_t seed = 1;
  for (const ParamSpec& p : params->specs()) {
    std::mt19937 random(seed++);
    const bool vector = p.group == Group::vector;
    std::normal_distribution<float> normal(0, vector ? 0.2f : c.init_std);
    const bool gain = p.name.ends_with("gain");
    std::vector<float> x(size_t(p.shape.numel()));
    for (float& v : x) v = float(bf16((gain ? 1.0f : 0.0f) + normal(random)));
    params->set(p.name, x);
  }
  return params;
}

// One step of a case, whose cache starts with random keys and values.
class DecodeRun {
 public:
  DecodeRun(Backend& b, const DecodeCase& c, DType dtype)
      : config_(c.config.resolve()),
        params_(decode_weights(b, config_, dtype)),
        memory_(b, params_.get()),
        backend_(b),
        width_((c.context + cache_block - 1) / cache_block),
        blocks_(1 + int64_t(c.positions.size()) * width_) {
    const int64_t rows = int64_t(c.positions.size());
    exec_ = std::make_unique<Exec>(record(rows, c.context, dtype), memory_);
    StateStore& state = memory_.state;
    RopeRows(config_, c.context).cover(memory_, c.context);
    std::vector<int32_t> tokens, sequences, tables;
    for (int32_t n = 0; n < int32_t(rows); ++n) {
      tokens.push_back((n * 31 + 7) % int32_t(config_.vocab)), sequences.push_back(n);
      for (int64_t i = 0; i < width_; ++i)  // not in order
        tables.push_back(int32_t((n + 1) * width_ - i));
    }
    state.write<int32_t>("tokens", tokens);
    state.write<int32_t>("positions", c.positions);
    state.write<int32_t>("sequences", sequences);
    state.write<int32_t>("tables", tables);
    for (int64_t i = 0; i < config_.layers; ++i) {
      const Tensor cache = state.find("cache." + std::to_string(i));
      std::mt19937 random(uint32_t(100 + i));
      std::normal_distribution<float> normal(0, 1);
      Numbers x(size_t(cache.numel()));
      for (double& v : x) v = rounded(normal(random), DType::bf16);
      write(backend_, cache, x);
    }
  }

  void run() {
    exec_->run();
    backend_.synchronize();
  }
  bool fused() const { return exec_->fused(); }
  Numbers logits() { return read(backend_, memory_.state.find("logits")); }
  Numbers cache(int64_t layer) {
    return read(backend_, memory_.state.find("cache." + std::to_string(layer)));
  }
  int64_t layers() const { return config_.layers; }
  StateStore& state() { return memory_.state; }

 private:
  Tape record(int64_t rows, int64_t context, DType dtype) {
    Tape t(dtype, "decode");
    t.trains = false;
    const DecoderInputs in{.tokens = t.state("tokens", {1, rows}, DType::i32),
                           .positions = t.state("positions", {1, rows}, DType::i32),
                           .sequences = t.state("sequences", {1, rows}, DType::i32),
                           .tables = t.state("tables", {rows, width_}, DType::i32)};
    const Var x =
        decoder(t, config_, in, {.cache_blocks = blocks_, .positions = context, .apart = true});
    const Var head = t.whole_tiles(head_weight(t, config_));
    const Var logits = t.state("logits", {rows, t.shape(head)[0]}, DType::f32);
    record_gemm(t, {.c = logits,
                    .a = t.view(x, {rows, config_.dim}),
                    .b = head,
                    .spec = {.tb = true, .alpha = config_.logit_scale}});
    return t;
  }

  ModelConfig config_;
  std::unique_ptr<ParamStore> params_;
  Memory memory_;
  Backend& backend_;
  int64_t width_, blocks_;
  std::unique_ptr<Exec> exec_;
};

}  // namespace hearth::cases
