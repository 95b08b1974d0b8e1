// The decoder: the one model, recorded from its config. Parameters are declared where they are
// used.
#pragma once

#include "core/fp8.h"
#include "model/config.h"
#include "ops/moe.h"
#include "ops/ops.h"

namespace hearth::inline model {

// Gradient checkpointing: the backward pass recomputes nothing; norms, activations and rotated
// heads; or whole blocks. On the CPU the gradients have the same bits in all three modes.
enum class Recompute : uint8_t { none, light, block };
inline std::span<const std::string_view> names_of(Recompute) {
  static constexpr auto names = std::to_array<std::string_view>({"none", "light", "block"});
  return names;
}

// The inputs of the model, all (B, T) i32 except `tables`. Without `documents` there is no document
// mask. `counts` is 0 for padding, which the losses of routers leave out. `sequences` and `tables`
// are used with a cache: see Paged.
struct DecoderInputs {
  Var tokens, positions, documents = {}, counts = {};
  Var sequences = {}, tables = {};
};
DecoderInputs declare_inputs(Tape&, int64_t B, int64_t T, bool documents);

struct DecoderMode {
  Recompute recompute = Recompute::none;
  bool dropout = false;  // as in the config; off for evaluation
  // More than 0: a paged KV cache of this many blocks, in states that all programs share and whose
  // names begin with "cache.". The rows of the batch (1, N) are then tokens of any sequences.
  int64_t cache_blocks = 0;
  CacheFormat cache = CacheFormat::plain;
  int64_t positions = 0;  // with a cache: positions are below this; 0: the model's context
  bool apart = false;     // with a cache: row n belongs to sequence n
  int64_t depth = 0;      // with a cache: see Paged
  // Latent attention with a cache: attend over latents; or, with the bits of training, over the
  // keys and values of the first sequences and blocks of each (0: all that the tables have).
  bool absorb = false;
  int64_t latent_sequences = 0, latent_blocks = 0;
  Var wanted = {};  // (1, n) i32: rows whose final states are computed; absent: all
  // With a cache: the final states of all rows are kept for this many modules; 0: they are not.
  int64_t modules = 0;
  bool adapters = true;  // of config.lora; off: the base model, as a reference
  // Weights of the losses of routers, which router_losses() records; means over the layers.
  float balance_loss = 0, router_z_loss = 0;
  // Receives the states (B, T, C) of each module of multi-token prediction, after its norm; null:
  // they are not computed. Those of module k at a token predict the token k + 2 further. Without a
  // cache only.
  std::vector<Var>* further = nullptr;
  // Gradients of the modules stop at the states, the embedding and whatever else of the model they
  // read, so that the model's own gradients are those without modules.
  bool detached = false;
  std::vector<Routing>* routings = nullptr;  // receives the routing of each layer with experts
};

// Final hidden states (B, T, C), after the final norm.
Var decoder(Tape&, const ModelConfig&, const DecoderInputs&, const DecoderMode&);
// What the modules of multi-token prediction learn.
struct MtpLossVars {
  std::span<const Var> states;  // of each module, as DecoderMode::further receives them
  Var targets, positions;       // (B, T): of the model
  // Where only chosen rows have targets: (1, n) their places, and (modules, n) the targets of each
  // module.
  Var rows = {}, module_targets = {};
};
// The loss terms mtp_1, mtp_2 and so on, with this weight together. A weight of 0 is an error:
// weight decay alone would move the modules.
void record_mtp_losses(Tape&, const ModelConfig&, const MtpLossVars&, float weight, HeadSpec);
// Whether a parameter belongs to a module.
bool is_of_module(const ParamSpec&);

// --- modules of multi-token prediction with a cache (mtp.cpp) ---
// The engine drafts with them. Blocks of the cache also hold states of their tokens: the final ones
// of the model (level 0), and those of module k before its norm (level k + 1).
struct StateLevels {
  int64_t levels = 0, blocks = 0;
};
// How many levels are read: the first module also continues from its own states.
constexpr int64_t state_levels(int64_t modules) { return modules > 1 ? modules : 2; }
// (levels * blocks, cache_block * C): the blocks of each level one after another.
Var cached_states(Tape&, const ModelConfig&, const StateLevels&);
// Stores the states x (1, N, C) of the rows at a level.
void keep_states(Tape&, const ModelConfig&, const StateLevels&, int64_t level, Var x, const Paged&);
// The states of module k, before its norm, from states h (1, N, C) of the level before. The tokens
// of the inputs are those that follow the positions by k + 1.
Var mtp_module(Tape&, const ModelConfig&, const DecoderInputs&, const DecoderMode&, int64_t k,
               Var h);
// The norm of module k, before the head.
Var mtp_norm(Tape&, const ModelConfig&, int64_t k, Var x);
// Bytes that a block of the cache holds for drafts by this many modules.
int64_t mtp_block_bytes(const ModelConfig&, int64_t modules, CacheFormat, DType plain);

// The weights of the head (V, C).
Var head_weight(Tape&, const ModelConfig&);

// The parameters of a model, found by recording it. A format other than plain is for inference
// only: it quantises the weights of products, but the head (also a tied one) to int8 at least,
// because every token depends on it. The kv_b of latent attention stays plain, because absorbed
// decoding multiplies by it from both sides.
std::vector<ParamSpec> decoder_params(const ModelConfig&, WeightFormat = WeightFormat::plain);
int64_t count_params(const ModelConfig&);
// Without the experts that a token does not pass through.
int64_t count_active_params(const ModelConfig&);

}  // namespace hearth::inline model
