// The keys of config.json, by family of layouts: one reader and one writer each. A key that we do
// not implement and that would change the output is refused by its name. Internal to hf_*.cpp.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "formats/fields.h"
#include "model/files/hf_names.h"
#include "sys/error.h"

namespace hearth::inline model {

struct Keys {
  const nlohmann::json& j;
  const std::string& where;
  std::set<std::string>* asked = nullptr;  // collects the keys that a reader knows

  bool has(const char* key) const {
    if (asked) asked->insert(key);
    return j.contains(key) && !j.at(key).is_null();
  }
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
  // For keys where null means 0, which is not what an absent key means.
  template <class T>
  T get_or_zero(const char* key, T absent) const {
    return has(key) || j.contains(key) ? get<T>(key, T(0)) : absent;
  }
  int64_t layers(const char* key) const;
  // For keys with one supported value; any other would change the output.
  template <class T>
  void only(const char* key, T value) const {
    if (has(key) && get<T>(key) != value)
      fail(where, "expected {} to be {}, got {}: not supported", key, nlohmann::json(value).dump(),
           j.at(key).dump());
  }
};

struct NamedAct {
  std::string_view name;
  Act act;
};
inline constexpr NamedAct gpt_acts[] = {{"gelu_new", Act::gelu_tanh},
                                        {"gelu_pytorch_tanh", Act::gelu_tanh},
                                        {"gelu", Act::gelu_erf},
                                        {"relu2", Act::relu2}};
inline constexpr NamedAct glu_acts[] = {
    {"silu", Act::swiglu},         {"swish", Act::swiglu},
    {"gelu", Act::geglu},          {"gelu_pytorch_tanh", Act::geglu_tanh},
    {"gelu_new", Act::geglu_tanh}, {"relu", Act::reglu}};
Act read_act(const Keys&, const char* key, const char* otherwise, std::span<const NamedAct>);
// The first name of an activation, or of the first activation if this layout lacks it.
std::string_view act_name(Act, std::span<const NamedAct>);

double plain(float);  // 1e-6, not 9.99999997e-07

// --- hf_rope_keys.cpp ---
struct RopeDefaults {
  double theta = 1e4;
  double rotary = 1;
  bool partial = false;  // the layout has a partial_rotary_factor; others take 1 only
};
// rope_theta and rope_scaling in old files, rope_parameters in new ones, or all three.
void read_rope(ModelConfig&, const Keys&, const RopeDefaults& = {});
// Refuses lists of longrope that do not fit the heads, by their keys; resolve() knows only ours.
void expect_factor_count(const ModelConfig&, const std::string& where);
// The type of scaling that the object at `where` names.
std::string rope_type(const nlohmann::json&, const std::string& where);
// The scaling alone, from the object at `where`.
void read_rope_scaling(ModelConfig&, const nlohmann::json&, const std::string& where);
nlohmann::ordered_json write_rope_scaling(const ModelConfig&);
// Sets rope_theta, rope_scaling and rope_parameters.
void write_rope(nlohmann::ordered_json&, const ModelConfig&);

// --- hf_llama_keys.cpp: llama, qwen2, qwen3, mistral, smollm3, olmo2, phi3 ---
struct LlamaDefaults {
  bool tied = false;
  float eps = 1e-6f;
  const char* act_key = "hidden_act";
  const char* act = "silu";
  RopeDefaults rope = {};
};
// What all llamas share, except the rope.
ModelConfig read_llama_sizes(const Keys&, const LlamaDefaults& = {});
ModelConfig read_llama_like(const Keys&, HfType);
// The same for writing; with the rope.
nlohmann::ordered_json write_llama_sizes(const ModelConfig&);
nlohmann::ordered_json write_llama_like(const ModelConfig&, HfType);
// layer_types as a pattern of S (sliding_attention) and L (full_attention), one letter per layer.
std::string read_layer_types(const ModelConfig&, const Keys&);
nlohmann::ordered_json write_layer_types(const ModelConfig&);
// The shortest text whose repetition, cut to length, gives `pattern`.
std::string shortest_period(const std::string& pattern);

// --- hf_gemma_keys.cpp: gemma, gemma2, gemma3_text ---
ModelConfig read_gemma(const Keys&, HfType);
nlohmann::ordered_json write_gemma(const ModelConfig&, HfType);

// --- hf_moe_keys.cpp: mixtral, qwen3_moe ---
ModelConfig read_moe(const Keys&, HfType);
nlohmann::ordered_json write_moe(const ModelConfig&, HfType);

// --- hf_deepseek_keys.cpp: deepseek_v3 ---
ModelConfig read_deepseek(const Keys&);
nlohmann::ordered_json write_deepseek(const ModelConfig&);

// --- hf_gpt_keys.cpp: gpt2, gpt_neox ---
ModelConfig read_gpt2(const Keys&);
nlohmann::ordered_json write_gpt2(const ModelConfig&);
ModelConfig read_gpt_neox(const Keys&);
nlohmann::ordered_json write_gpt_neox(const ModelConfig&);

}  // namespace hearth::inline model
