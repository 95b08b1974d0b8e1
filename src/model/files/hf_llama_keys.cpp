// Layouts that are a llama with other choices: qwen2, qwen3, mistral, smollm3, olmo2, phi3.
#include <vector>

#include "model/files/hf_keys.h"
#include "model/layer_spec.h"

namespace hearth::inline model {

using nlohmann::json;
using nlohmann::ordered_json;

// --- reading ---

ModelConfig read_llama_sizes(const Keys& k, const LlamaDefaults& defaults) {
  ModelConfig c;
  c.vocab = k.get<int64_t>("vocab_size");
  c.context = k.get<int64_t>("max_position_embeddings", 2048);
  c.dim = k.get<int64_t>("hidden_size");
  c.layers = k.layers("num_hidden_layers");
  c.heads = k.get<int64_t>("num_attention_heads");
  c.kv_heads = k.get<int64_t>("num_key_value_heads", 0);
  c.head_dim = k.get<int64_t>("head_dim", 0);
  c.hidden = k.get<int64_t>("intermediate_size");
  c.norm_eps = k.get<float>("rms_norm_eps", defaults.eps);
  c.qkv_bias = c.out_bias = k.get<bool>("attention_bias", false);
  c.act = read_act(k, defaults.act_key, defaults.act, glu_acts);
  c.tied = k.get<bool>("tie_word_embeddings", defaults.tied);
  c.dropout_attention = k.get<float>("attention_dropout", 0);
  c.init_std = k.get<float>("initializer_range", 0.02f);
  return c;
}

// The pattern without the longest proper prefix that is also its suffix.
std::string shortest_period(const std::string& pattern) {
  std::vector<size_t> both(pattern.size() + 1);  // length of that prefix for the first i letters
  for (size_t i = 1, k = 0; i < pattern.size(); ++i) {
    while (k && pattern[i] != pattern[k]) k = both[k];
    both[i + 1] = k += pattern[i] == pattern[k];
  }
  return pattern.substr(0, pattern.size() - both.back());
}

std::string read_layer_types(const ModelConfig& c, const Keys& k) {
  const json& types = k.j.at("layer_types");
  if (!types.is_array() || int64_t(types.size()) != c.layers)
    fail(k.where, "expected layer_types to list {} layers", c.layers);
  std::string pattern;
  for (const json& type : types) {
    if (type != "full_attention" && type != "sliding_attention")
      fail(k.where, "expected layer_types of full_attention and sliding_attention, got {}",
           in_quotes(type.dump()));
    pattern += type == "full_attention" ? 'L' : 'S';
  }
  return pattern;
}

namespace {

// A window in the layers S of `pattern`.
void set_window(ModelConfig& c, int64_t window, const std::string& pattern) {
  if (pattern.find('S') == pattern.npos) return;
  c.window = window;
  c.window_pattern = shortest_period(pattern);
}

bool slides(const Keys& k) {
  return k.get<bool>("use_sliding_window", false) && k.has("sliding_window");
}

// qwen2 and qwen3: the layers with a window are listed by name, or all from max_window_layers on.
void read_qwen_window(ModelConfig& c, const Keys& k) {
  if (!k.get<bool>("use_sliding_window", false)) return;
  const int64_t window = k.get_or_zero<int64_t>("sliding_window", 4096);
  if (window == 0) return;
  std::string pattern;
  const int64_t full = k.get<int64_t>("max_window_layers", 28);
  for (int64_t i = 0; i < c.layers; ++i) pattern += i < full ? 'L' : 'S';
  if (k.has("layer_types")) pattern = read_layer_types(c, k);
  set_window(c, window, pattern);
}

// mistral and phi3: all layers or none.
void read_whole_window(ModelConfig& c, const Keys& k, int64_t absent) {
  c.window = k.get_or_zero<int64_t>("sliding_window", absent);
  if (k.has("layer_types") &&
      read_layer_types(c, k).find(c.window ? 'L' : 'S') != std::string::npos)
    fail(k.where, "expected layer_types that all agree with sliding_window, got others");
}

// A 1 in no_rope_layers means that the layer has a rope.
void read_smollm3_layers(ModelConfig& c, const Keys& k) {
  std::string ropes, windows;
  if (k.has("no_rope_layers")) {
    const json& list = k.j.at("no_rope_layers");
    if (!list.is_array() || int64_t(list.size()) < c.layers)
      fail(k.where, "expected no_rope_layers to list {} layers", c.layers);
    for (int64_t i = 0; i < c.layers; ++i) {
      const json& one = list[size_t(i)];
      if (one != 0 && one != 1)
        fail(k.where, "expected no_rope_layers of 0 and 1, got {}", in_quotes(one.dump()));
      ropes += one == 1 ? 'R' : 'N';
    }
  } else {
    const int64_t every = k.get<int64_t>("no_rope_layer_interval", 4);
    if (every < 1) fail(k.where, "expected no_rope_layer_interval of 1 or more, got {}", every);
    for (int64_t i = 0; i < c.layers; ++i) ropes += (i + 1) % every ? 'R' : 'N';
  }
  c.rope_pattern = ropes;
  if (!slides(k)) return;
  for (const char rope : ropes) windows += rope == 'R' ? 'L' : 'S';
  if (k.has("layer_types")) windows = read_layer_types(c, k);
  set_window(c, k.get<int64_t>("sliding_window"), windows);
}

// transformers computes every other type of a phi3 as longrope, or refuses it.
void refuse_rope_types(const Keys& k) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!k.has(key)) continue;
    const std::string where = k.where + "." + key, type = rope_type(k.j.at(key), where);
    if (type != "default" && type != "longrope")
      fail(where, "expected rope_type to be default or longrope for phi3, got {}: not supported",
           in_quotes(type));
  }
}

void read_phi3(ModelConfig& c, const Keys& k) {
  k.only("attention_bias", false);
  c.dropout_embed = k.get<float>("embd_pdrop", 0);
  c.dropout_residual = k.get<float>("resid_pdrop", 0);
  read_whole_window(c, k, 0);
}

LlamaDefaults defaults_of(HfType type) {
  LlamaDefaults d;
  d.tied = type == HfType::smollm3;
  if (type == HfType::olmo2 || type == HfType::phi3) d.eps = 1e-5f;
  if (type == HfType::smollm3) d.rope.theta = 2e6;
  d.rope.partial = type == HfType::phi3;
  return d;
}

}  // namespace

ModelConfig read_llama_like(const Keys& k, HfType type) {
  const LlamaDefaults defaults = defaults_of(type);
  ModelConfig c = read_llama_sizes(k, defaults);
  if (type == HfType::phi3) refuse_rope_types(k);
  read_rope(c, k, defaults.rope);
  if (type == HfType::llama || type == HfType::smollm3) c.mlp_bias = k.get<bool>("mlp_bias", false);
  switch (type) {
    case HfType::qwen2:
      c.kv_heads = k.get<int64_t>("num_key_value_heads");
      c.qkv_bias = true, c.out_bias = false;
      read_qwen_window(c, k);
      break;
    case HfType::qwen3:
      c.kv_heads = k.get<int64_t>("num_key_value_heads");
      c.head_dim = k.get<int64_t>("head_dim", 128);
      c.qk_norm = QkNorm::before_rope;
      read_qwen_window(c, k);
      break;
    case HfType::mistral:
      c.kv_heads = k.get<int64_t>("num_key_value_heads", 8);
      c.qkv_bias = c.out_bias = false;
      read_whole_window(c, k, 4096);
      break;
    case HfType::smollm3:
      c.kv_heads = k.get_or_zero<int64_t>("num_key_value_heads", 4);
      read_smollm3_layers(c, k);
      break;
    case HfType::olmo2:
      c.norm_place = NormPlace::after;
      c.qk_norm = QkNorm::before_rope, c.qk_norm_whole = true;
      break;
    case HfType::phi3:
      read_phi3(c, k);
      break;
    default:
      break;
  }
  return c;
}

// --- writing ---

ordered_json write_llama_sizes(const ModelConfig& c) {
  ordered_json j{{"vocab_size", c.vocab},
                 {"max_position_embeddings", c.context},
                 {"hidden_size", c.dim},
                 {"intermediate_size", c.hidden},
                 {"num_hidden_layers", c.layers},
                 {"num_attention_heads", c.heads},
                 {"num_key_value_heads", c.kv_heads},
                 {"head_dim", c.head_dim},
                 {"hidden_act", act_name(c.act, glu_acts)},
                 {"rms_norm_eps", plain(c.norm_eps)},
                 {"attention_bias", c.qkv_bias || c.out_bias},
                 {"attention_dropout", plain(c.dropout_attention)},
                 {"mlp_bias", c.mlp_bias},
                 {"initializer_range", plain(c.init_std)},
                 {"tie_word_embeddings", c.tied}};
  write_rope(j, c);
  return j;
}

ordered_json write_layer_types(const ModelConfig& c) {
  ordered_json types = ordered_json::array();
  for (const LayerSpec& l : layer_specs(c))
    types.push_back(l.window ? "sliding_attention" : "full_attention");
  return types;
}

namespace {

ordered_json window_or_null(const ModelConfig& c) {
  return c.window > 0 ? ordered_json(c.window) : ordered_json();
}

void write_qwen_window(ordered_json& j, const ModelConfig& c) {
  j["use_sliding_window"] = c.window > 0;
  j["sliding_window"] = window_or_null(c);
  int64_t full = 0;  // leading layers without a window, for readers without layer_types
  const std::vector<LayerSpec> layers = layer_specs(c);
  while (full < c.layers && layers[size_t(full)].window == 0) ++full;
  j["max_window_layers"] = full;
  j["layer_types"] = write_layer_types(c);
}

void write_smollm3_layers(ordered_json& j, const ModelConfig& c) {
  ordered_json ropes = ordered_json::array();
  for (const LayerSpec& l : layer_specs(c)) ropes.push_back(l.rope ? 1 : 0);
  j["no_rope_layers"] = ropes;
  j["no_rope_layer_interval"] = 4;  // unused beside the list
  j["use_sliding_window"] = c.window > 0;
  j["sliding_window"] = window_or_null(c);
  j["layer_types"] = write_layer_types(c);
}

// transformers 4 takes three keys of a rope_scaling, and the type by its old key.
void write_phi3_rope(ordered_json& j, const ModelConfig& c) {
  const bool longrope = c.rope_scaling == RopeScaling::longrope;
  j["original_max_position_embeddings"] = longrope ? c.rope_context : c.context;
  j["partial_rotary_factor"] = plain(c.rotary);
  j["rope_parameters"]["partial_rotary_factor"] = plain(c.rotary);
  if (!longrope) return;
  ordered_json& scaling = j["rope_scaling"];
  scaling["type"] = "longrope";
  scaling.erase("rope_type");
  scaling.erase("original_max_position_embeddings");
}

}  // namespace

ordered_json write_llama_like(const ModelConfig& c, HfType type) {
  ordered_json j = write_llama_sizes(c);
  if (type != HfType::llama && type != HfType::smollm3) j.erase("mlp_bias");
  switch (type) {
    case HfType::qwen2:
      j.erase("attention_bias");
      write_qwen_window(j, c);
      break;
    case HfType::qwen3:
      write_qwen_window(j, c);
      break;
    case HfType::mistral:
      j.erase("attention_bias");
      j["sliding_window"] = window_or_null(c);
      break;
    case HfType::smollm3:
      write_smollm3_layers(j, c);
      break;
    case HfType::phi3:
      j.erase("attention_bias");
      j["embd_pdrop"] = plain(c.dropout_embed);
      j["resid_pdrop"] = plain(c.dropout_residual);
      j["sliding_window"] = window_or_null(c);
      write_phi3_rope(j, c);
      break;
    default:
      break;
  }
  return j;
}

}  // namespace hearth::inline model
