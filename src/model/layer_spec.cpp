#include "model/layer_spec.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "formats/fields.h"
#include "formats/json.h"
#include "sys/error.h"

namespace hearth::inline model {
namespace {

// A pattern has one letter per layer and is repeated over the layers.
char letter_of(const std::string& pattern, int64_t layer) {
  return pattern[size_t(layer) % pattern.size()];
}

void check_pattern(const std::string& pattern, const char* letters, const char* expected) {
  if (pattern.empty() || pattern.find_first_not_of(letters) != std::string::npos)
    fail("model", "expected {}, got {}", expected, in_quotes(pattern));
}

void check_rope(const ModelConfig& c) {
  if (c.position != Position::rope) return;
  if (!(c.rope_theta > 1 && std::isfinite(c.rope_theta)))
    fail("model", "expected a rope_theta above 1, got {}", c.rope_theta);
  if (c.rope_scaling == RopeScaling::none || c.rope_scaling == RopeScaling::longrope) return;
  if (!(c.rope_factor > 0 && std::isfinite(c.rope_factor)))
    fail("model", "expected a rope_factor above 0, got {}", c.rope_factor);
  if (c.rope_scaling != RopeScaling::linear && !(c.rope_high > c.rope_low))
    fail("model", "expected a rope_high above rope_low {}, got {}", c.rope_low, c.rope_high);
  if (c.rope_context < 0)
    fail("model", "expected a rope_context of 0 or more, got {}", c.rope_context);
}

// The pattern of all layers, which is canonical; empty if they all have the one rope.
void resolve_ropes(ModelConfig& c) {
  check_rope(c);
  if (!(c.rope_local_theta > 1 && std::isfinite(c.rope_local_theta)))
    fail("model", "expected a rope_local_theta above 1, got {}", c.rope_local_theta);
  if (c.rope_pattern.empty()) return;
  check_pattern(c.rope_pattern, "RLN", "a rope_pattern of R, L and N");
  if (c.position != Position::rope)
    fail("model", "expected position rope with a rope_pattern, got {}", enum_name(c.position));
  std::string ropes;
  for (int64_t i = 0; i < c.layers; ++i) ropes += letter_of(c.rope_pattern, i);
  c.rope_pattern = ropes.find_first_not_of('R') == ropes.npos ? "" : ropes;
}

// The same with the letters of layers without attention replaced by N; empty if no key is offset.
void resolve_key_offsets(ModelConfig& c) {
  if (c.key_offset_pattern.empty()) return;
  const std::string given = c.key_offset_pattern;
  check_pattern(given, "ON", "a key_offset_pattern of O and N");
  c.key_offset_pattern = "";
  if (given.find('O') == given.npos) return;
  if (c.position != Position::rope)
    fail("model", "expected position rope with a key_offset_pattern, got {}",
         enum_name(c.position));
  if (const int64_t turned = rotated_dims(c); turned == 0 || turned == c.head_dim)
    fail("model",
         "key_offset_pattern needs keys that RoPE rotates in part: expected rotary between 0 and "
         "1, got {}",
         c.rotary);
  if (c.window == 1 || c.long_window == 1)
    fail("model", "key_offset_pattern needs windows of at least 2 tokens, got 1");
  std::string offsets;
  for (int64_t i = 0; i < c.layers; ++i) {
    const bool attends = c.mixer_pattern.empty() || letter_of(c.mixer_pattern, i) == 'A';
    offsets += attends ? letter_of(given, i) : 'N';
    if (offsets.back() == 'O' && !c.rope_pattern.empty() && letter_of(c.rope_pattern, i) == 'N')
      fail("model",
           "expected no layer with O in key_offset_pattern and N in rope_pattern, got layer {}", i);
  }
  if (offsets.find('O') == offsets.npos)
    fail("model", "expected a key_offset_pattern with O in a layer with attention, got {}",
         in_quotes(given));
  c.key_offset_pattern = offsets;
}

}  // namespace

void resolve_layers(ModelConfig& c) {
  if (c.v_head_dim < 0 || c.v_head_dim > (int64_t(1) << 31) / c.heads)
    fail("model",
         "expected a v_head_dim of 0 or more and heads * v_head_dim of at most 2^31, got {}",
         c.v_head_dim);
  if (c.v_head_dim == c.head_dim) c.v_head_dim = 0;  // canonical: one config per model
  if (c.mixer_pattern.empty()) c.mixer_pattern = "A";
  check_pattern(c.mixer_pattern, "AN", "a mixer_pattern of A and N");
  std::string mixers;  // expanded to all layers, which is canonical
  for (int64_t i = 0; i < c.layers; ++i) mixers += letter_of(c.mixer_pattern, i);
  if (mixers.find('A') == mixers.npos)
    fail("model", "expected a mixer_pattern with attention in one of {} layers, got {}", c.layers,
         in_quotes(c.mixer_pattern));
  // Empty if every layer has attention, as in configs written before this field existed.
  c.mixer_pattern = mixers.find('N') == mixers.npos ? "" : mixers;
  if (c.value_embeds < 0 || c.value_embeds > c.layers / 2)
    fail("model", "expected value_embeds of 0 to half of the {} layers, got {}", c.layers,
         c.value_embeds);
  constexpr int64_t most = INT32_MAX;  // as kernels count positions
  if (c.window < 0 || c.window > most)
    fail("model", "expected a window of 0 to {}, got {}", most, c.window);
  if (c.long_window < 0 || c.long_window > most)
    fail("model", "expected a long_window of 0 to {}, got {}", most, c.long_window);
  check_pattern(c.window_pattern, "SL", "a window_pattern of S and L");
  resolve_ropes(c);
  resolve_key_offsets(c);
}

std::vector<LayerSpec> layer_specs(const ModelConfig& config) {
  const ModelConfig c = config.resolve();
  std::vector<LayerSpec> all;
  bool attended = false;  // by an earlier layer
  for (int64_t i = 0; i < c.layers; ++i) {
    LayerSpec& l = all.emplace_back(LayerSpec{.act = c.act, .hidden = c.hidden});
    if (is_expert_layer(c.moe, i)) {
      l.hidden = c.moe.expert_hidden, l.experts = c.moe.experts, l.top_k = c.moe.top_k;
      l.shared_hidden = c.moe.shared_experts * c.moe.expert_hidden;
    }
    l.x0 = c.x0_skip && i > 0;  // the input of the first block is the embedding
    if (const int64_t mirrored = c.layers - 1 - i; c.u_skips && mirrored < i - 1) l.skip = mirrored;
    if (!c.mixer_pattern.empty() && letter_of(c.mixer_pattern, i) == 'N') continue;
    l.mixer = Mixer::attention;
    l.heads = c.heads, l.kv_heads = c.kv_heads, l.qk_dim = c.head_dim;
    l.v_dim = c.v_head_dim ? c.v_head_dim : c.head_dim;
    l.kv_latent = c.mla.kv_latent, l.q_latent = c.mla.q_latent, l.rope_dim = c.mla.rope_dim;
    l.window = letter_of(c.window_pattern, i) == 'S' ? c.window : c.long_window;
    const char rope = c.rope_pattern.empty() ? 'R' : letter_of(c.rope_pattern, i);
    l.rope = c.position == Position::rope && c.rotary > 0 && rope != 'N';
    l.rope_local = l.rope && rope == 'L';
    if (!c.key_offset_pattern.empty() && letter_of(c.key_offset_pattern, i) == 'O')
      l.key_offset = l.qk_dim - rotated_dims(c);
    if (const int64_t last = i - (c.layers - c.value_embeds); c.value_embeds > 0)
      l.value_embed = i < c.value_embeds ? i : last >= 0 ? last : -1;
    l.value_residual = c.value_residual && std::exchange(attended, true);
  }
  return all;
}

LayerSpec mtp_layer(const ModelConfig& c) {
  const std::vector<LayerSpec> all = layer_specs(c);
  LayerSpec own = *std::ranges::find_if(all.rbegin(), all.rend(), &LayerSpec::attends);
  const LayerSpec& last = all.back();
  own.hidden = last.hidden, own.shared_hidden = last.shared_hidden;
  own.experts = last.experts, own.top_k = last.top_k;
  own.x0 = own.value_residual = false, own.skip = own.value_embed = -1, own.key_offset = 0;
  return own;
}

int64_t LayerSpec::attention_params(int64_t dim) const {
  if (!kv_latent) return dim * (qkv_size() + y_size());
  const int64_t q = q_latent ? q_latent * (dim + q_size()) : dim * q_size();
  return q + dim * (kv_latent + rope_dim) + kv_latent * latent().kv_size() + dim * y_size();
}

CacheLayout LayerSpec::cache(CacheFormat format, DType plain) const {
  if (!attends()) return {};
  if (kv_latent)  // one panel, whose rows are a latent and the rotated key
    return {.heads = 1,
            .k_width = kv_latent + rope_dim,
            .v_width = 0,
            .format = format,
            .dtype = cache_dtype(format, plain)};
  return {.heads = kv_heads,
          .k_width = qk_dim,
          .v_width = v_dim,
          .format = format,
          .dtype = cache_dtype(format, plain)};
}

std::vector<LayerRopeTable> layer_rope_tables(const ModelConfig& config, int64_t rows) {
  bool global = false, local = false;
  for (const LayerSpec& l : layer_specs(config))
    if (l.rope) (l.rope_local ? local : global) = true;
  std::vector<LayerRopeTable> tables;
  const std::string name = uses_long_factors(config) ? "rope_long." : "rope.";
  if (global) tables.push_back({name + std::to_string(rows), config, false});
  if (local) {
    tables.push_back({"rope_local." + std::to_string(rows), config, true});
    ModelConfig& c = tables.back().config;
    c.rope_theta = c.rope_local_theta, c.rope_scaling = RopeScaling::none;
  }
  return tables;
}

bool reads_previous_tokens(const ModelConfig& c) { return c.smear || c.bigram_embeds > 0; }

int64_t cache_block_bytes(const ModelConfig& config, CacheFormat format, DType plain) {
  int64_t bytes = reads_previous_tokens(config) ? cache_block * size_of(DType::i32) : 0;
  for (const LayerSpec& l : layer_specs(config))
    bytes += l.cache(format, plain).block_bytes() + cache_block * l.kept_keys() * size_of(plain);
  return bytes;
}

int64_t widest_window(const ModelConfig& config) {
  int64_t widest = 0;
  for (const LayerSpec& l : layer_specs(config)) {
    if (!l.attends()) continue;
    if (l.window == 0) return 0;
    widest = std::max(widest, l.window);
  }
  return widest;
}

void check_layers_run(const ModelConfig& config, const Backend& backend, DType dtype) {
  for (const LayerSpec& l : layer_specs(config))
    if (const std::string why = l.attends() ? backend.refuses_heads(l.qk_dim, l.v_dim, dtype) : "";
        !why.empty())
      fail("model", "{}", why);
}

}  // namespace hearth::inline model
