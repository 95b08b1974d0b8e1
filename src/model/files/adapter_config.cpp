// Reads and writes PEFT's adapter_config.json.
#include <algorithm>
#include <array>
#include <cmath>

#include "formats/fields.h"
#include "model/files/adapter.h"
#include "sys/error.h"

namespace hearth::inline model {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr size_t max_targets = 10'000;
constexpr int64_t max_rank = 8192;

// Keys that do not affect what a trained adapter computes.
constexpr auto idle_keys = std::to_array<std::string_view>(
    {"auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "fan_in_fan_out",
     "inference_mode", "layers_pattern", "loftq_config", "lora_ga_config", "megatron_core",
     "peft_type", "peft_version", "qalora_group_size", "revision", "runtime_config", "task_type"});
constexpr auto used_keys =
    std::to_array<std::string_view>({"bias", "init_lora_weights", "lora_alpha", "lora_dropout", "r",
                                     "target_modules", "use_rslora"});
// Initialisations that leave the base unchanged; others (pissa, olora, ...) modify it.
constexpr auto plain_starts = std::to_array<std::string_view>({"gaussian", "eva", "orthogonal"});

template <class List>
bool among(const List& list, std::string_view key) {
  return std::find(list.begin(), list.end(), key) != list.end();
}

bool says_nothing(const json& v) {
  return v.is_null() || v == false || ((v.is_structured() || v.is_string()) && v.empty());
}

[[noreturn]] void refuse(const std::string& where, const std::string& key, const json& value) {
  fail(where, "adapters with {} (here {}) are not supported", in_quotes(key),
       in_quotes(value.dump(-1, ' ', false, json::error_handler_t::replace)));
}

template <class T>
T value_of(const json& j, const char* key, T otherwise, const std::string& where) {
  if (j.contains(key) && !j.at(key).is_null())
    field_from_json(otherwise, j.at(key), where + "." + key);
  return otherwise;
}

std::vector<std::string> targets_of(const json& j, const std::string& where) {
  const json value = j.value("target_modules", json());
  if (value == "all-linear") return {"all-linear"};
  const auto is_text = [](const json& s) { return s.is_string() && !s.empty(); };
  if (!value.is_array() || value.empty() || value.size() > max_targets ||
      !std::all_of(value.begin(), value.end(), is_text))
    fail(where, "expected target_modules to be a list of names or all-linear, got {}",
         in_quotes(value.dump(-1, ' ', false, json::error_handler_t::replace)));
  return value.get<std::vector<std::string>>();
}

ordered_json number(float x) {
  return std::abs(x) < 1e9f && x == float(int64_t(x)) ? ordered_json(int64_t(x)) : ordered_json(x);
}

}  // namespace

void check_lora(const LoraSpec& s, std::string_view where) {
  if (s.rank < 1 || s.rank > max_rank)
    fail(where, "expected a rank from 1 to {}, got {}", max_rank, s.rank);
  if (!std::isfinite(s.alpha)) fail(where, "expected a finite alpha, got {}", s.alpha);
  if (!(s.dropout >= 0 && s.dropout < 1))
    fail(where, "expected a dropout in [0, 1), got {}", s.dropout);
  if (s.targets.empty()) fail(where, "expected at least one target, got none");
}

AdapterConfig adapter_from_json(const json& j, const std::string& where) {
  if (!j.is_object()) fail(where, "expected a JSON object");
  if (const json type = j.value("peft_type", json()); type != "LORA")
    fail(where, "expected peft_type LORA, got {}",
         in_quotes(type.dump(-1, ' ', false, json::error_handler_t::replace)));
  for (const auto& [key, value] : j.items())
    if (!among(idle_keys, key) && !among(used_keys, key) && !says_nothing(value))
      refuse(where, key, value);
  if (!j.contains("r")) fail(where, "the key r is missing");
  if (value_of<std::string>(j, "bias", "none", where) != "none")
    refuse(where, "bias", j.at("bias"));
  if (const json start = j.value("init_lora_weights", json());
      !start.is_boolean() && !start.is_null() &&
      !(start.is_string() && among(plain_starts, start.get<std::string>())))
    refuse(where, "init_lora_weights", start);
  AdapterConfig c;
  c.lora.rank = value_of<int64_t>(j, "r", 0, where);
  c.lora.alpha = value_of<float>(j, "lora_alpha", 8, where);
  c.lora.dropout = value_of<float>(j, "lora_dropout", 0, where);
  c.lora.rslora = value_of<bool>(j, "use_rslora", false, where);
  c.lora.targets = targets_of(j, where);
  c.base = value_of<std::string>(j, "base_model_name_or_path", "", where);
  check_lora(c.lora, where);
  return c;
}

std::string adapter_config_json(const AdapterConfig& c, bool conv1d) {
  const LoraSpec& s = c.lora;
  const ordered_json j{{"alpha_pattern", ordered_json::object()},
                       {"auto_mapping", nullptr},
                       {"base_model_name_or_path", c.base},
                       {"bias", "none"},
                       {"fan_in_fan_out", conv1d},
                       {"inference_mode", true},
                       {"init_lora_weights", true},
                       {"layers_pattern", nullptr},
                       {"layers_to_transform", nullptr},
                       {"lora_alpha", number(s.alpha)},
                       {"lora_dropout", double(s.dropout)},
                       {"modules_to_save", nullptr},
                       {"peft_type", "LORA"},
                       {"r", s.rank},
                       {"rank_pattern", ordered_json::object()},
                       {"revision", nullptr},
                       {"target_modules", s.targets},
                       {"task_type", "CAUSAL_LM"},
                       {"use_dora", false},
                       {"use_rslora", s.rslora}};
  return j.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace hearth::inline model
