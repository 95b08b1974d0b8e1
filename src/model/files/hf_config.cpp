// Reads and writes config.json. Each layout has one reader and one writer of its keys; a config
// uses the first layout that reproduces everything that affects the model's output. The rest
// (initialisation, dropouts, rope pairs) is stored under "hearth_config".
#include <cmath>
#include <optional>
#include <tuple>

#include "formats/fields.h"
#include "model/files/folder.h"
#include "model/files/hf_names.h"
#include "model/layer_spec.h"
#include "sys/error.h"

namespace hearth::inline model {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* own_key = "hearth_config";
// Limits the work that a file can cause before any tensor is read.
constexpr int64_t max_layers = 10'000;

// --- reading ---

struct Keys {
  const json& j;
  const std::string& where;

  bool has(const char* key) const { return j.contains(key) && !j.at(key).is_null(); }
  template <class T>
  T get(const char* key) const {
    if (!has(key)) fail(where, "the key {} is missing", key);
    T value{};
    field_from_json(value, j.at(key), where + "." + key);
    return value;
  }
  template <class T>
  T get(const char* key, T otherwise) const {
    return has(key) ? get<T>(key) : otherwise;
  }
  int64_t layers(const char* key) const {
    const int64_t n = get<int64_t>(key);
    if (n < 1 || n > max_layers)
      fail(where, "expected {} between 1 and {}, got {}", key, max_layers, n);
    return n;
  }
  // For keys with one supported value; any other would change the output.
  template <class T>
  void only(const char* key, T value) const {
    if (has(key) && get<T>(key) != value)
      fail(where, "expected {} to be {}, got {}: not supported", key, json(value).dump(),
           j.at(key).dump());
  }
};

struct NamedAct {
  std::string_view name;
  Act act;
};
constexpr NamedAct gpt2_acts[] = {{"gelu_new", Act::gelu_tanh},
                                  {"gelu_pytorch_tanh", Act::gelu_tanh},
                                  {"gelu", Act::gelu_erf},
                                  {"relu2", Act::relu2}};
constexpr NamedAct glu_acts[] = {
    {"silu", Act::swiglu}, {"swish", Act::swiglu}, {"gelu", Act::geglu}, {"relu", Act::reglu}};

Act read_act(const Keys& k, const char* key, const char* otherwise,
             std::span<const NamedAct> acts) {
  const std::string name = k.get<std::string>(key, otherwise);
  std::string known;
  for (const NamedAct& a : acts) {
    if (a.name == name) return a.act;
    known += (known.empty() ? "" : ", ") + std::string(a.name);
  }
  fail(k.where, "expected {} to be one of {}, got {}", key, known, in_quotes(name));
}

// The first name of an activation, or of the first activation if this layout lacks it.
std::string_view act_name(Act act, std::span<const NamedAct> acts) {
  for (const NamedAct& a : acts)
    if (a.act == act) return a.name;
  return acts[0].name;
}

ModelConfig read_gpt2(const Keys& k) {
  ModelConfig c;
  c.vocab = k.get<int64_t>("vocab_size");
  c.context = k.get<int64_t>("n_positions", k.get<int64_t>("n_ctx", 1024));
  c.dim = k.get<int64_t>("n_embd");
  c.layers = k.layers("n_layer");
  c.heads = k.get<int64_t>("n_head");
  c.hidden = k.get<int64_t>("n_inner", 0);
  c.position = Position::learned;
  c.norm = Norm::layer, c.norm_bias = true;
  c.norm_eps = k.get<float>("layer_norm_epsilon", 1e-5f);
  c.qkv_bias = c.out_bias = c.mlp_bias = true;
  c.act = read_act(k, "activation_function", "gelu_new", gpt2_acts);
  c.tied = k.get<bool>("tie_word_embeddings", true);
  c.dropout_embed = k.get<float>("embd_pdrop", 0.1f);
  c.dropout_attention = k.get<float>("attn_pdrop", 0.1f);
  c.dropout_residual = k.get<float>("resid_pdrop", 0.1f);
  c.init_std = k.get<float>("initializer_range", 0.02f);
  k.only("scale_attn_weights", true);
  k.only("scale_attn_by_inverse_layer_idx", false);
  k.only("add_cross_attention", false);
  return c;
}

// YaRN's default scale of q and k, which rope_table() applies.
double yarn_magnitude(double factor) { return factor > 1 ? 0.1 * std::log(factor) + 1 : 1; }

void read_rope_scaling(ModelConfig& c, const json& j, const std::string& where) {
  if (!j.is_object()) fail(where, "expected an object, got {}", in_quotes(j.dump()));
  const Keys k{j, where};
  k.only("partial_rotary_factor", 1.0);
  const std::string type =
      k.get<std::string>("rope_type", k.get<std::string>("type", std::string("default")));
  if (type == "default") return;
  if (type == "linear") {
    c.rope_scaling = RopeScaling::linear;
  } else if (type == "llama3") {
    c.rope_scaling = RopeScaling::llama3;
    c.rope_low = k.get<float>("low_freq_factor");
    c.rope_high = k.get<float>("high_freq_factor");
  } else if (type == "yarn") {
    c.rope_scaling = RopeScaling::yarn;
    c.rope_low = k.get<float>("beta_slow", 1);
    c.rope_high = k.get<float>("beta_fast", 32);
    k.only("truncate", true);
    for (const char* key : {"mscale", "mscale_all_dim"}) k.only(key, 0.0);
  } else {
    fail(where, "expected rope_type to be default, linear, llama3 or yarn, got {}",
         in_quotes(type));
  }
  c.rope_factor = k.get<float>("factor");
  if (!(c.rope_factor >= 1)) fail(where, "expected a factor of 1 or more, got {}", c.rope_factor);
  if (c.rope_scaling == RopeScaling::linear) return;
  c.rope_context = c.rope_scaling == RopeScaling::llama3
                       ? k.get<int64_t>("original_max_position_embeddings")
                       : k.get<int64_t>("original_max_position_embeddings", c.context);
  if (c.rope_context < 1 || c.rope_high <= c.rope_low)
    fail(where, "expected a positive original context and increasing bounds, got {}, {} and {}",
         c.rope_context, c.rope_low, c.rope_high);
  const double magnitude = yarn_magnitude(c.rope_factor);
  if (c.rope_scaling == RopeScaling::yarn &&
      std::abs(k.get<double>("attention_factor", magnitude) - magnitude) > 1e-6)
    fail(where, "expected attention_factor to be {}, got {}: not supported", magnitude,
         k.get<double>("attention_factor"));
}

// rope_theta and rope_scaling in old files, rope_parameters in new ones, or all three.
void read_rope(ModelConfig& c, const Keys& k) {
  std::optional<double> theta;
  if (k.has("rope_theta")) theta = k.get<double>("rope_theta");
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!k.has(key)) continue;
    const std::string where = k.where + "." + key;
    ModelConfig fresh;
    fresh.context = c.context;
    read_rope_scaling(fresh, k.j.at(key), where);
    const bool again = key[5] == 'p' && k.has("rope_scaling");
    const auto scaling = [](const ModelConfig& x) {
      return std::tuple(x.rope_scaling, x.rope_factor, x.rope_low, x.rope_high, x.rope_context);
    };
    if (again && scaling(fresh) != scaling(c))
      fail(where, "expected the same as rope_scaling, got {}", in_quotes(k.j.at(key).dump()));
    std::tie(c.rope_scaling, c.rope_factor, c.rope_low, c.rope_high, c.rope_context) =
        scaling(fresh);
    const Keys inner{k.j.at(key), where};
    const double here = inner.get<double>("rope_theta", theta.value_or(1e4));
    if (theta && here != *theta)
      fail(where, "expected the earlier rope_theta {}, got {}", *theta, here);
    if (inner.has("rope_theta")) theta = here;
  }
  c.rope_theta = theta.value_or(1e4);
  if (!(c.rope_theta > 1)) fail(k.where, "expected rope_theta above 1, got {}", c.rope_theta);
  k.only("partial_rotary_factor", 1.0);
}

ModelConfig read_llama(const Keys& k) {
  ModelConfig c;
  c.vocab = k.get<int64_t>("vocab_size");
  c.context = k.get<int64_t>("max_position_embeddings", 2048);
  c.dim = k.get<int64_t>("hidden_size");
  c.layers = k.layers("num_hidden_layers");
  c.heads = k.get<int64_t>("num_attention_heads");
  c.kv_heads = k.get<int64_t>("num_key_value_heads", 0);
  c.head_dim = k.get<int64_t>("head_dim", 0);
  c.hidden = k.get<int64_t>("intermediate_size");
  c.norm_eps = k.get<float>("rms_norm_eps", 1e-6f);
  c.qkv_bias = c.out_bias = k.get<bool>("attention_bias", false);
  c.mlp_bias = k.get<bool>("mlp_bias", false);
  c.act = read_act(k, "hidden_act", "silu", glu_acts);
  c.tied = k.get<bool>("tie_word_embeddings", false);
  c.dropout_attention = k.get<float>("attention_dropout", 0);
  c.init_std = k.get<float>("initializer_range", 0.02f);
  read_rope(c, k);
  return c;
}

// The shortest text whose repetition, cut to length, gives `pattern`: the pattern without the
// longest proper prefix that is also its suffix.
std::string shortest_period(const std::string& pattern) {
  std::vector<size_t> both(pattern.size() + 1);  // length of that prefix for the first i letters
  for (size_t i = 1, k = 0; i < pattern.size(); ++i) {
    while (k && pattern[i] != pattern[k]) k = both[k];
    both[i + 1] = k += pattern[i] == pattern[k];
  }
  return pattern.substr(0, pattern.size() - both.back());
}

// The layers with a window: listed by name, or all from max_window_layers on.
std::string read_window_pattern(const ModelConfig& c, const Keys& k) {
  std::string pattern;
  if (k.has("layer_types")) {
    const json& types = k.j.at("layer_types");
    if (!types.is_array() || int64_t(types.size()) != c.layers)
      fail(k.where, "expected layer_types to list {} layers", c.layers);
    for (const json& type : types) {
      if (type != "full_attention" && type != "sliding_attention")
        fail(k.where, "expected layer_types of full_attention and sliding_attention, got {}",
             in_quotes(type.dump()));
      pattern += type == "full_attention" ? 'L' : 'S';
    }
  } else {
    const int64_t full = k.get<int64_t>("max_window_layers", 28);
    for (int64_t i = 0; i < c.layers; ++i) pattern += i < full ? 'L' : 'S';
  }
  return shortest_period(pattern);
}

ModelConfig read_qwen3(const Keys& k) {
  ModelConfig c = read_llama(k);
  c.kv_heads = k.get<int64_t>("num_key_value_heads");
  c.head_dim = k.get<int64_t>("head_dim", 128);
  c.mlp_bias = false;
  c.qk_norm = QkNorm::before_rope;
  if (k.get<bool>("use_sliding_window", false) && k.has("sliding_window")) {
    const std::string pattern = read_window_pattern(c, k);
    if (pattern != "L") {
      c.window = k.get<int64_t>("sliding_window");
      c.window_pattern = pattern;
    }
  }
  return c;
}

// --- writing ---

double plain(float x) { return std::stod(fmt::format("{}", x)); }  // 1e-6, not 9.99999997e-07

ordered_json write_gpt2(const ModelConfig& c) {
  return {{"vocab_size", c.vocab},
          {"n_positions", c.context},
          {"n_ctx", c.context},
          {"n_embd", c.dim},
          {"n_layer", c.layers},
          {"n_head", c.heads},
          {"n_inner", c.hidden},
          {"activation_function", act_name(c.act, gpt2_acts)},
          {"layer_norm_epsilon", plain(c.norm_eps)},
          {"embd_pdrop", plain(c.dropout_embed)},
          {"attn_pdrop", plain(c.dropout_attention)},
          {"resid_pdrop", plain(c.dropout_residual)},
          {"initializer_range", plain(c.init_std)},
          {"scale_attn_weights", true},
          {"tie_word_embeddings", c.tied}};
}

ordered_json write_rope_scaling(const ModelConfig& c) {
  const int64_t original = c.rope_context ? c.rope_context : c.context;
  switch (c.rope_scaling) {
    case RopeScaling::none:
      return {{"rope_type", "default"}};
    case RopeScaling::linear:
      return {{"rope_type", "linear"}, {"factor", plain(c.rope_factor)}};
    case RopeScaling::llama3:
      return {{"rope_type", "llama3"},
              {"factor", plain(c.rope_factor)},
              {"low_freq_factor", plain(c.rope_low)},
              {"high_freq_factor", plain(c.rope_high)},
              {"original_max_position_embeddings", original}};
    case RopeScaling::yarn:
      return {{"rope_type", "yarn"},
              {"factor", plain(c.rope_factor)},
              {"beta_slow", plain(c.rope_low)},
              {"beta_fast", plain(c.rope_high)},
              {"original_max_position_embeddings", original}};
  }
  return ordered_json::object({{"rope_type", "default"}});
}

ordered_json write_llama(const ModelConfig& c) {
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
                 {"tie_word_embeddings", c.tied},
                 {"rope_theta", c.rope_theta}};
  const ordered_json scaling = write_rope_scaling(c);
  j["rope_scaling"] = c.rope_scaling == RopeScaling::none ? ordered_json() : scaling;
  j["rope_parameters"] = scaling;
  j["rope_parameters"]["rope_theta"] = c.rope_theta;
  return j;
}

ordered_json write_qwen3(const ModelConfig& c) {
  ordered_json j = write_llama(c);
  j.erase("mlp_bias");
  j["use_sliding_window"] = c.window > 0;
  j["sliding_window"] = c.window > 0 ? ordered_json(c.window) : ordered_json();
  int64_t full = 0;  // leading layers without a window, for readers without layer_types
  const std::vector<LayerSpec> layers = layer_specs(c);
  while (full < c.layers && layers[size_t(full)].window == 0) ++full;
  j["max_window_layers"] = full;
  for (const LayerSpec& l : layers)
    j["layer_types"].push_back(l.window ? "sliding_attention" : "full_attention");
  return j;
}

ordered_json write_keys(const ModelConfig& c, HfType type) {
  switch (type) {
    case HfType::gpt2:
      return write_gpt2(c);
    case HfType::llama:
      return write_llama(c);
    case HfType::qwen3:
      return write_qwen3(c);
    case HfType::hearth:
      break;
  }
  return ordered_json::object();
}

ModelConfig read_keys(const json& j, HfType type, const std::string& where) {
  const Keys k{j, where};
  if (k.has("quantization_config"))
    fail(where,
         "quantised Hugging Face models (quantization_config) are not supported; use the original "
         "float weights");
  switch (type) {
    case HfType::gpt2:
      return read_gpt2(k);
    case HfType::llama:
      return read_llama(k);
    case HfType::qwen3:
      return read_qwen3(k);
    case HfType::hearth:
      break;
  }
  if (!k.has(own_key)) fail(where, "the key {} is missing", own_key);
  return {};
}

// --- the choice of a layout ---

// The config with defaults for everything that cannot change what a Hugging Face folder computes:
// training fields, fields that another choice makes unused, and differences that the row order or
// zero rows in the file compensate.
ModelConfig numbers_of(ModelConfig c) {
  const ModelConfig d;
  c.init = d.init, c.init_std = d.init_std, c.embed_std = d.embed_std;
  c.zero_projections = d.zero_projections, c.zero_head = d.zero_head;
  c.dropout_embed = c.dropout_attention = c.dropout_residual = c.dropout_mlp = 0;
  if (c.position != Position::rope) {
    c.rope_theta = d.rope_theta, c.rotary = d.rotary;
    c.rope_reverse = d.rope_reverse, c.rope_scaling = d.rope_scaling;
  } else {
    c.qkv_bias = c.out_bias = c.qkv_bias || c.out_bias;
  }
  c.rope_pairs = d.rope_pairs;
  if (c.rope_scaling == RopeScaling::none) c.rope_factor = d.rope_factor;
  if (c.rope_scaling == RopeScaling::none || c.rope_scaling == RopeScaling::linear) {
    c.rope_low = d.rope_low, c.rope_high = d.rope_high, c.rope_context = d.rope_context;
  } else if (c.rope_context == 0) {
    c.rope_context = c.context;
  }
  if (c.qk_norm == QkNorm::none) c.qk_norm_gain = d.qk_norm_gain;
  std::string windows;
  for (const LayerSpec& l : layer_specs(c)) windows += l.window ? 'S' : 'L';
  if (windows.find('S') == windows.npos) c.window = 0;
  c.window_pattern = windows;
  return c;
}

// The config that a reader of this layout's keys would get; nothing if the reader rejects them.
std::optional<ModelConfig> as_said(const ModelConfig& c, HfType type) {
  try {
    return read_keys(write_keys(c, type), type, "config").resolve();
  } catch (const Error&) { return std::nullopt; }
}

}  // namespace

HfType hf_type(const ModelConfig& config) {
  const ModelConfig c = config.resolve();
  for (HfType type : {HfType::gpt2, HfType::llama, HfType::qwen3}) {
    const auto said = as_said(c, type);
    if (said && numbers_of(*said) == numbers_of(c)) return type;
  }
  return HfType::hearth;
}

std::string hf_config_json(const ModelConfig& config, DType weights, int32_t bos, int32_t eos) {
  const ModelConfig c = config.resolve();
  const HfType type = hf_type(c);
  static constexpr std::string_view architectures[] = {"GPT2LMHeadModel", "LlamaForCausalLM",
                                                       "Qwen3ForCausalLM", "HearthForCausalLM"};
  const std::string_view dtype = weights == DType::bf16  ? "bfloat16"
                                 : weights == DType::f16 ? "float16"
                                 : weights == DType::f64 ? "float64"
                                                         : "float32";
  ordered_json j{{"architectures", ordered_json::array({architectures[size_t(type)]})},
                 {"model_type", enum_name(type)},
                 {"dtype", dtype},
                 {"torch_dtype", dtype}};
  const auto token = [](int32_t id) { return id < 0 ? ordered_json() : ordered_json(id); };
  j["bos_token_id"] = token(bos);
  j["eos_token_id"] = token(eos);
  j.update(write_keys(c, type));

  ordered_json own = fields_to_json(c);
  if (type != HfType::hearth) {
    const ordered_json said = fields_to_json(*as_said(c, type));
    ordered_json unsaid = ordered_json::object();
    for (const auto& [key, value] : own.items())
      if (said.at(key) != value) unsaid[key] = value;
    own = std::move(unsaid);
  }
  if (!own.empty()) j[own_key] = own;
  return j.dump(2) + "\n";
}

std::string hf_generation_config_json(int32_t bos, int32_t eos,
                                      const std::vector<int32_t>& more_ends,
                                      const ordered_json& base) {
  ordered_json j{{"_from_model_config", true}};
  if (base.is_object()) j = base;
  j.erase("eos_token_id");
  if (bos >= 0) j["bos_token_id"] = bos;
  std::vector<int32_t> ends;
  if (eos >= 0) ends.push_back(eos);
  for (const int32_t id : more_ends)
    if (std::ranges::find(ends, id) == ends.end()) ends.push_back(id);
  if (ends.size() == 1) j["eos_token_id"] = ends[0];
  if (ends.size() > 1) j["eos_token_id"] = ends;
  return j.dump(2) + "\n";
}

HfType hf_type_from_json(const json& j, const std::string& where) {
  if (!j.is_object()) fail(where, "expected an object, got {}", in_quotes(j.dump()));
  const std::string name = Keys{j, where}.get<std::string>("model_type");
  const auto names = names_of(HfType{});
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return HfType(i);
  fail(where, "expected model_type gpt2, llama, qwen3 or hearth, got {}", in_quotes(name));
}

ModelConfig config_from_hf_json(const json& j, const std::string& where) {
  const HfType type = hf_type_from_json(j, where);
  ModelConfig said = read_keys(j, type, where);
  if (type != HfType::hearth) said = said.resolve();  // hearth sets all fields below
  if (!j.contains(own_key)) return said;
  const std::string own = where + "." + own_key;
  ModelConfig c = said;
  fields_from_json(c, j.at(own_key), own);
  c = c.resolve();
  if (type != HfType::hearth && !(numbers_of(c) == numbers_of(said)))
    fail(own, "expected no contradiction to the keys of {}, got {}", enum_name(type),
         in_quotes(j.at(own_key).dump()));
  return c;
}

}  // namespace hearth::inline model
