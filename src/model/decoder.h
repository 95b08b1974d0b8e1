// The decoder: the one model, recorded from its config. Parameters are declared where they are
// used.
#pragma once

#include "core/fp8.h"
#include "model/config.h"
#include "ops/ops.h"

namespace hearth::inline model {

// What the backward pass makes again instead of keeping: nothing; norms, activations and rotated
// heads; or whole blocks. Gradients are the same bits.
enum class Recompute : uint8_t { none, light, block };
inline std::span<const std::string_view> names_of(Recompute) {
  static constexpr auto names = std::to_array<std::string_view>({"none", "light", "block"});
  return names;
}

// What the model reads, all (B, T) i32 but `tables`. `documents` may be absent: no document mask.
// `sequences` and `tables` are there with a cache: see Paged.
struct DecoderInputs {
  Var tokens, positions, documents = {};
  Var sequences = {}, tables = {};
};
DecoderInputs declare_inputs(Tape&, int64_t B, int64_t T, bool documents);

struct DecoderMode {
  Recompute recompute = Recompute::none;
  bool dropout = false;  // as the config says; off for evaluation
  // More than 0: a paged KV cache of so many blocks, in the states "cache.<layer>" that all
  // programs share; the rows of the batch (1, N) are tokens of any sequences.
  int64_t cache_blocks = 0;
  CacheFormat cache = CacheFormat::plain;
  int64_t positions = 0;  // with a cache: positions are below this; 0: the model's context
  bool apart = false;     // with a cache: row n is of sequence n
  Var wanted = {};        // (1, n) i32: the rows whose final states are made; absent: all
  bool adapters = true;   // of config.lora; off: the base model, for a reference
};

// Final hidden states (B, T, C), after the final norm.
Var decoder(Tape&, const ModelConfig&, const DecoderInputs&, const DecoderMode&);
// The weights of the head (V, C).
Var head_weight(Tape&, const ModelConfig&);

// The parameters of a model, found by recording it. In another format than plain, for inference
// alone: what products read is quantised, the head (a tied one too) to int8 at least, since every
// token's choice hangs on it.
std::vector<ParamSpec> decoder_params(const ModelConfig&, WeightFormat = WeightFormat::plain);
int64_t count_params(const ModelConfig&);

}  // namespace hearth::inline model
