// LayerSpec: what one layer of a model is. The list is built from the config once; the decoder, the
// FLOPs count, the KV cache, the memory plan and the tensors of files all follow it. Any choice
// that differs between layers is made in layer_specs() and nowhere else.
#pragma once

#include <vector>

#include "core/backend.h"
#include "core/cache_layout.h"
#include "model/config.h"

namespace hearth::inline model {

// How a layer moves information between tokens, before its MLP.
enum class Mixer : uint8_t { attention, none };

struct LayerSpec {
  Mixer mixer = Mixer::none;
  // Attention; all 0 without it.
  int64_t heads = 0, kv_heads = 0;
  int64_t qk_dim = 0, v_dim = 0;  // width of a head of q and k, and of v
  int64_t kv_latent = 0;          // keys and values are computed from a latent; 0: directly
  int64_t q_latent = 0;           // so are queries; 0: directly
  int64_t rope_dim = 0;           // with a latent: the rotated dims at the end of a q or k head
  int64_t window = 0;             // tokens a query attends to, including its own; 0: all previous
  bool rope = false;
  bool rope_local = false;  // with the base of local layers, not scaled
  int64_t key_offset = 0;   // last dims of each key that are those of the token before
  // What the layer adds to its values, with learned weights.
  int64_t value_embed = -1;     // row of this table of embeddings; -1: none
  bool value_residual = false;  // the values of the first layer with attention
  // What the layer adds to its input, with learned weights.
  bool x0 = false;    // the embedding
  int64_t skip = -1;  // the output of this earlier layer; -1: of none
  // The MLP, or each of its experts.
  Act act = Act::none;
  int64_t hidden = 0;
  int64_t experts = 0, top_k = 0;  // 0: a dense MLP
  int64_t shared_hidden = 0;       // width of the experts that compute every token; 0: none

  bool attends() const { return mixer == Mixer::attention; }
  // Columns of the projections: packed q, k and v, and the output of attention.
  int64_t q_size() const { return heads * qk_dim; }
  int64_t k_size() const { return kv_heads * qk_dim; }
  int64_t v_size() const { return kv_heads * v_dim; }
  int64_t qkv_size() const { return q_size() + k_size() + v_size(); }
  int64_t y_size() const { return heads * v_dim; }
  // Elements of a token's own keys that a cache keeps for the token after it.
  int64_t kept_keys() const { return kv_heads * key_offset; }
  // With a latent: the heads, and the columns of the matrix that computes keys and values.
  LatentSpec latent() const {
    return {.heads = heads, .nope = qk_dim - rope_dim, .rope = rope_dim, .v = v_dim};
  }
  // Elements of the matrices of attention, without its gate.
  int64_t attention_params(int64_t dim) const;
  int64_t up_size() const { return is_glu(act) ? 2 * hidden : hidden; }  // packed gate | up
  // Columns of the first matrix and rows of the last one that a token passes through in the MLP.
  int64_t mlp_size() const {
    return (up_size() + hidden) * (experts ? top_k : 1) + shared_hidden * (is_glu(act) ? 3 : 2);
  }

  CacheLayout cache(CacheFormat, DType plain) const;
  bool operator==(const LayerSpec&) const = default;
};

std::vector<LayerSpec> layer_specs(const ModelConfig&);
// The block of a module of multi-token prediction: the attention of the last layer that has one and
// the MLP or experts of the last layer, without what layers add to each other.
LayerSpec mtp_layer(const ModelConfig&);
constexpr int64_t most_mtp = 3;  // modules, each with a loss term of its own

// Whether the embedding of a token depends on the one before it. A cache then holds the tokens,
// too.
bool reads_previous_tokens(const ModelConfig&);

// A table of rope that layers of a model read: its name, which is the same in all programs, and the
// config whose rope_table() fills it.
struct LayerRopeTable {
  std::string name;
  ModelConfig config;
  bool local = false;
};
// The tables of a program with this many rows, global and local, as far as layers read them.
std::vector<LayerRopeTable> layer_rope_tables(const ModelConfig&, int64_t rows);

// Bytes of one block of the KV cache over all layers.
int64_t cache_block_bytes(const ModelConfig&, CacheFormat, DType plain);
// The widest attention window of any layer; 0: unlimited.
int64_t widest_window(const ModelConfig&);

// Throws if the backend has no attention kernels for a layer.
void check_layers_run(const ModelConfig&, const Backend&, DType);

// The part of ModelConfig::resolve() for layers: fills and checks what differs between them. The
// sizes that they share must be resolved already.
void resolve_layers(ModelConfig&);
// The same for latent attention, before anything that needs the width of heads.
void resolve_latents(ModelConfig&);
constexpr int64_t most_latent = int64_t(1) << 20;  // the largest width that a config may name
// Dims of a head that rope rotates; `head_dim` must be resolved.
int64_t rotated_dims(const ModelConfig&);
// The factor of YaRN or longrope on rotated dims; 1 without them.
double rope_magnitude(const ModelConfig&);
// The factor on the scores of heads of this width.
float attention_score_scale(const ModelConfig&, int64_t qk_dim);
// The same for the lists of longrope; the width of heads must be resolved already.
void resolve_long_rope(ModelConfig&);
// The divisors of the frequencies for the length that the config is made for; empty without
// longrope.
std::vector<float> long_rope_divisors(const ModelConfig& resolved);
// The same for experts; the layers must be resolved already.
void resolve_experts(ModelConfig&);
// Whether a layer has experts.
bool is_expert_layer(const MoeConfig&, int64_t layer);

}  // namespace hearth::inline model
