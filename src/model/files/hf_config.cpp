// Reads and writes config.json. Each layout has one reader and one writer of its keys (hf_keys.h).
// A config uses the layout that it names or the first one that reproduces everything that affects
// the model's output. The rest (initialisation, dropouts, rope pairs) is stored under
// "hearth_config".
#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "formats/fields.h"
#include "model/files/folder.h"
#include "model/files/hf_keys.h"
#include "model/files/hf_names.h"
#include "model/layer_spec.h"
#include "sys/edit_distance.h"
#include "sys/error.h"

namespace hearth::inline model {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr const char* own_key = "hearth_config";
constexpr const char* layout_key = "layout";  // of own_key; model_type says it for other layouts
// Limits the work that a file can cause before any tensor is read.
constexpr int64_t max_layers = 10'000;

}  // namespace

int64_t Keys::layers(const char* key) const {
  const int64_t n = get<int64_t>(key);
  if (n < 1 || n > max_layers)
    fail(where, "expected {} between 1 and {}, got {}", key, max_layers, n);
  return n;
}

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

std::string_view act_name(Act act, std::span<const NamedAct> acts) {
  for (const NamedAct& a : acts)
    if (a.act == act) return a.name;
  return acts[0].name;
}

double plain(float x) { return std::stod(fmt::format("{}", x)); }

namespace {

ordered_json write_keys(const ModelConfig& c, HfType type) {
  switch (type) {
    case HfType::gpt2:
      return write_gpt2(c);
    case HfType::gpt_neox:
      return write_gpt_neox(c);
    case HfType::llama:
    case HfType::qwen2:
    case HfType::qwen3:
    case HfType::mistral:
    case HfType::smollm3:
    case HfType::olmo2:
    case HfType::phi3:
      return write_llama_like(c, type);
    case HfType::gemma:
    case HfType::gemma2:
    case HfType::gemma3_text:
      return write_gemma(c, type);
    case HfType::mixtral:
    case HfType::qwen3_moe:
      return write_moe(c, type);
    case HfType::deepseek_v3:
      return write_deepseek(c);
    case HfType::hearth:
      break;
  }
  return ordered_json::object();
}

ModelConfig read_keys(const json& j, HfType type, const std::string& where,
                      std::set<std::string>* asked = nullptr) {
  const Keys k{j, where, asked};
  if (k.has("quantization_config"))
    fail(where,
         "quantised Hugging Face models (quantization_config) are not supported; use the original "
         "float weights");
  k.only("is_causal", true);  // transformers attends in both directions without it
  switch (type) {
    case HfType::gpt2:
      return read_gpt2(k);
    case HfType::gpt_neox:
      return read_gpt_neox(k);
    case HfType::llama:
    case HfType::qwen2:
    case HfType::qwen3:
    case HfType::mistral:
    case HfType::smollm3:
    case HfType::olmo2:
    case HfType::phi3:
      return read_llama_like(k, type);
    case HfType::gemma:
    case HfType::gemma2:
    case HfType::gemma3_text:
      return read_gemma(k, type);
    case HfType::mixtral:
    case HfType::qwen3_moe:
      return read_moe(k, type);
    case HfType::deepseek_v3:
      return read_deepseek(k);
    case HfType::hearth:
      break;
  }
  if (!k.has(own_key)) fail(where, "the key {} is missing", own_key);
  return {};
}

// --- the choice of a layout ---

// The config with defaults for everything that cannot change what a Hugging Face folder computes:
// training fields, fields that another choice makes unused, and differences that the row order
// compensates. With `zero_biases`, also attention biases that a file may have as zeros.
ModelConfig numbers_of(ModelConfig c, bool zero_biases) {
  const ModelConfig d;
  c.layout = d.layout;
  c.init = d.init, c.init_std = d.init_std, c.embed_std = d.embed_std;
  c.zero_projections = d.zero_projections, c.zero_head = d.zero_head;
  c.dropout_embed = c.dropout_attention = c.dropout_residual = c.dropout_mlp = 0;
  if (c.position != Position::rope) {
    c.rope_theta = d.rope_theta, c.rotary = d.rotary;
    c.rope_reverse = d.rope_reverse, c.rope_scaling = d.rope_scaling;
  } else if (zero_biases) {
    c.qkv_bias = c.out_bias = c.qkv_bias || c.out_bias;
  }
  if (c.position != Position::relative)
    c.relative_buckets = d.relative_buckets, c.relative_distance = d.relative_distance;
  c.rope_pairs = d.rope_pairs;
  if (c.rope_scaling == RopeScaling::none) c.rope_factor = d.rope_factor;
  if (c.rope_scaling == RopeScaling::none || c.rope_scaling == RopeScaling::linear) {
    c.rope_low = d.rope_low, c.rope_high = d.rope_high, c.rope_context = d.rope_context;
  } else if (c.rope_context == 0) {
    c.rope_context = c.context;
  }
  if (c.rope_scaling == RopeScaling::longrope) {
    c.rope_low = d.rope_low, c.rope_high = d.rope_high;
  } else {
    c.rope_short_factors = d.rope_short_factors, c.rope_long_factors = d.rope_long_factors;
    c.rope_attention_factor = d.rope_attention_factor;
  }
  if (c.rope_pattern.find('L') == c.rope_pattern.npos) c.rope_local_theta = d.rope_local_theta;
  if (c.qk_norm == QkNorm::none) c.qk_norm_gain = d.qk_norm_gain;
  if (c.score_scale == float(1 / std::sqrt(double(c.head_dim)))) c.score_scale = d.score_scale;
  std::string windows;
  bool dense = false;  // a layer without experts
  for (const LayerSpec& l : layer_specs(c)) {
    windows += l.window ? 'S' : 'L';
    dense |= l.experts == 0;
  }
  if (!dense) c.hidden = c.moe.expert_hidden;
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

// Whether the layout has one key for the biases of all attention projections, so that a file may
// have some of them as zeros.
bool has_bias_key(HfType type) {
  switch (type) {
    case HfType::gpt2:
    case HfType::qwen2:
    case HfType::mistral:
    case HfType::phi3:
    case HfType::mixtral:
    case HfType::hearth:
      return false;
    default:
      return true;
  }
}

// A quick answer for most pairs, before the keys are written and read.
bool may_be(const ModelConfig& c, HfType type) {
  const bool bare = c.norm_place == NormPlace::pre && c.qk_norm == QkNorm::none &&
                    c.norm == Norm::rms && c.embed_scale == 1 && !c.parallel_residual;
  if (type == HfType::deepseek_v3) return bare && c.mla;
  if (c.mla || bool(c.moe) != (type == HfType::mixtral || type == HfType::qwen3_moe)) return false;
  switch (type) {
    case HfType::gpt2:
      return c.position == Position::learned;
    case HfType::gpt_neox:
      return c.norm == Norm::layer && c.position == Position::rope;
    case HfType::qwen3:
    case HfType::qwen3_moe:
      return c.qk_norm == QkNorm::before_rope && c.norm_place == NormPlace::pre;
    case HfType::olmo2:
      return c.norm_place == NormPlace::after;
    case HfType::gemma:
      return c.embed_scale != 1 && c.norm_place == NormPlace::pre;
    case HfType::gemma2:
      return c.norm_place == NormPlace::sandwich && c.qk_norm == QkNorm::none;
    case HfType::gemma3_text:
      return c.norm_place == NormPlace::sandwich && c.qk_norm == QkNorm::before_rope;
    default:
      return bare && c.position == Position::rope;
  }
}

bool expresses(HfType type, const ModelConfig& c, bool zero_biases) {
  if (!may_be(c, type) || (zero_biases && !has_bias_key(type))) return false;
  const auto said = as_said(c, type);
  return said && numbers_of(*said, zero_biases) == numbers_of(c, zero_biases);
}

// The layout that the config names, if it can express the model; else the first that can. One that
// needs no zeros for absent biases comes first.
HfType chosen_layout(const ModelConfig& c) {
  if (const auto named = find_enum<HfType>(c.layout)) {
    if (*named == HfType::hearth) return *named;
    for (const bool zero_biases : {false, true})
      if (expresses(*named, c, zero_biases)) return *named;
  }
  for (const bool zero_biases : {false, true})
    for (size_t i = 0; i < size_t(HfType::hearth); ++i)
      if (expresses(HfType(i), c, zero_biases)) return HfType(i);
  return HfType::hearth;
}

}  // namespace

HfType hf_type(const ModelConfig& config) { return chosen_layout(config.resolve()); }

namespace {

// The family that a model which no layout expresses looks like.
HfType nearest_layout(const ModelConfig& c) {
  const bool qk_norm = c.qk_norm != QkNorm::none;
  if (c.mla) return HfType::deepseek_v3;
  if (c.moe) return qk_norm ? HfType::qwen3_moe : HfType::mixtral;
  if (c.position == Position::learned) return HfType::gpt2;
  if (c.norm == Norm::layer) return HfType::gpt_neox;
  if (c.norm_place == NormPlace::after) return HfType::olmo2;
  if (c.norm_place == NormPlace::sandwich) return qk_norm ? HfType::gemma3_text : HfType::gemma2;
  return qk_norm ? HfType::qwen3 : HfType::llama;
}

}  // namespace

std::string why_own_layout(const ModelConfig& config) {
  const ModelConfig c = config.resolve();
  const HfType type = nearest_layout(c);
  const auto said = as_said(c, type);
  if (!said) return {};
  const ordered_json own = fields_to_json(numbers_of(c, true));
  const ordered_json theirs = fields_to_json(numbers_of(*said, true));
  for (const auto& [key, value] : own.items()) {
    // These sizes follow from other settings, which are the reason then.
    if (key == "kv_heads" || key == "head_dim" || key == "hidden" || theirs.at(key) == value)
      continue;
    return fmt::format("{} cannot express {} = {}", enum_name(type), key,
                       value.is_string() ? value.get<std::string>() : value.dump());
  }
  return {};
}

std::string hf_config_json(const ModelConfig& config, DType weights, int32_t bos, int32_t eos) {
  const ModelConfig c = config.resolve();
  const HfType type = hf_type(c);
  static constexpr std::string_view architectures[] = {
      "GPT2LMHeadModel",    "LlamaForCausalLM",    "Qwen2ForCausalLM",      "Qwen3ForCausalLM",
      "MistralForCausalLM", "SmolLM3ForCausalLM",  "GPTNeoXForCausalLM",    "Olmo2ForCausalLM",
      "GemmaForCausalLM",   "Gemma2ForCausalLM",   "Gemma3ForCausalLM",     "Phi3ForCausalLM",
      "MixtralForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM", "HearthForCausalLM"};
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
  // Some configs of transformers have a default that is beyond a small vocabulary.
  j["pad_token_id"] = nullptr;
  j.update(write_keys(c, type));

  ordered_json own = fields_to_json(c);
  if (type != HfType::hearth) {
    const ordered_json said = fields_to_json(*as_said(c, type));
    ordered_json unsaid = ordered_json::object();
    for (const auto& [key, value] : own.items())
      if (key != layout_key && said.at(key) != value) unsaid[key] = value;
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
  fail(where, "expected model_type to be one of {}, got {}", fmt::join(names, ", "),
       in_quotes(name));
}

namespace {

// Two letters differ, or a few are missing at the end, as in rms_norm_eps and rms_norm_epsilon.
bool is_misspelt(std::string_view key, std::string_view meant) {
  constexpr size_t most_missing = 4, long_key = 8;
  const size_t shorter = std::min(key.size(), meant.size());
  const size_t longer = std::max(key.size(), meant.size());
  if (longer - shorter > most_missing) return false;
  if (shorter >= long_key && key.substr(0, shorter) == meant.substr(0, shorter)) return true;
  return edit_distance(key, meant) <= (shorter >= long_key ? 2 : 1);
}

// Refuses a key that looks like an absent one of this layout. Other unknown keys are ignored, as
// transformers does: files have many that do not concern us.
void expect_no_misspelling(const json& j, const std::set<std::string>& asked,
                           const std::string& where) {
  for (const auto& [key, value] : j.items()) {
    if (asked.contains(key) || key.starts_with("_"))
      continue;  // transformers keeps such for itself
    for (const std::string& known : asked)
      if (!j.contains(known) && is_misspelt(key, known))
        fail(where, "expected a known key, got {}; did you mean {}?", in_quotes(key), known);
  }
}

// A layout is named in the config only if another one would be chosen without the name.
ModelConfig with_layout(ModelConfig c, HfType type) {
  if (type != HfType::hearth) c.layout = enum_name(type);
  if (c.layout.empty()) return c;
  ModelConfig unnamed = c;
  unnamed.layout.clear();
  return hf_type(c) == hf_type(unnamed) ? unnamed : c;
}

}  // namespace

ModelConfig config_from_hf_json(const json& j, const std::string& where) {
  const HfType type = hf_type_from_json(j, where);
  std::set<std::string> asked{own_key};
  ModelConfig said = read_keys(j, type, where, &asked);
  expect_no_misspelling(j, asked, where);
  if (type != HfType::hearth) {  // hearth sets all fields below
    expect_factor_count(said, where);
    said = said.resolve();
  }
  if (!j.contains(own_key)) return with_layout(said, type);
  const std::string own = where + "." + own_key;
  ModelConfig c = said;
  fields_from_json(c, j.at(own_key), own);
  c = c.resolve();
  if (type != HfType::hearth && !(numbers_of(c, true) == numbers_of(said, true)))
    fail(own, "expected no contradiction to the keys of {}, got {}", enum_name(type),
         in_quotes(j.at(own_key).dump()));
  return with_layout(c, type);
}

}  // namespace hearth::inline model
