// LayerSpec: what one layer of a model is. The list of them is made from the config once, and the
// decoder, the FLOPs count, the KV cache, the memory plan and the tensors of files all follow it. A
// choice that differs from layer to layer is decided in layer_specs() and nowhere else.
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
  // Of attention; all 0 without it.
  int64_t heads = 0, kv_heads = 0;
  int64_t qk_dim = 0, v_dim = 0;  // width of a head of q and k, and of v
  int64_t window = 0;             // tokens in sight, itself included; 0: all before it
  bool rope = false;
  // Of the MLP.
  Act act = Act::none;
  int64_t hidden = 0;

  bool attends() const { return mixer == Mixer::attention; }
  // Columns of the projections: of q, k and v, side by side, and of what attention returns.
  int64_t q_size() const { return heads * qk_dim; }
  int64_t k_size() const { return kv_heads * qk_dim; }
  int64_t v_size() const { return kv_heads * v_dim; }
  int64_t qkv_size() const { return q_size() + k_size() + v_size(); }
  int64_t y_size() const { return heads * v_dim; }
  int64_t up_size() const { return is_glu(act) ? 2 * hidden : hidden; }  // packed gate | up

  CacheLayout cache(CacheFormat, DType plain) const;
  bool operator==(const LayerSpec&) const = default;
};

std::vector<LayerSpec> layer_specs(const ModelConfig&);

// Bytes of one block of the KV cache over all layers.
int64_t cache_block_bytes(const ModelConfig&, CacheFormat, DType plain);
// How far back any layer looks; 0: to the beginning.
int64_t widest_window(const ModelConfig&);

// Fails with one line if the backend has no attention kernels for a layer.
void check_layers_run(const ModelConfig&, const Backend&, DType);

// The part of ModelConfig::resolve() that is about layers: fills and checks what differs between
// them. The sizes that they share are resolved already.
void resolve_layers(ModelConfig&);

}  // namespace hearth::inline model
