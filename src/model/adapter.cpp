#include "model/adapter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "core/error.h"
#include "io/checkpoint_dir.h"
#include "io/fields.h"
#include "model/tensor_rows.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char *config_file = "adapter_config.json",
                     *weights_file = "adapter_model.safetensors",
                     *weights_index = "adapter_model.safetensors.index.json";
constexpr std::string_view peft_prefix = "base_model.model.";
constexpr size_t max_targets = 10'000;

// Keys that do not change what a trained adapter computes.
constexpr auto idle_keys = std::to_array<std::string_view>(
    {"auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "fan_in_fan_out",
     "inference_mode", "layers_pattern", "loftq_config", "lora_ga_config", "megatron_core",
     "peft_type", "peft_version", "qalora_group_size", "revision", "runtime_config", "task_type"});
constexpr auto used_keys =
    std::to_array<std::string_view>({"bias", "init_lora_weights", "lora_alpha", "lora_dropout", "r",
                                     "target_modules", "use_rslora"});
// Starts that leave the base as it is; others (pissa, olora, ...) have changed it.
constexpr auto plain_starts = std::to_array<std::string_view>({"gaussian", "eva", "orthogonal"});

template <class List>
bool among(const List& list, std::string_view key) {
  return std::find(list.begin(), list.end(), key) != list.end();
}

bool says_nothing(const json& v) {
  return v.is_null() || v == false || ((v.is_structured() || v.is_string()) && v.empty());
}

[[noreturn]] void refuse(const std::string& where, const std::string& key, const json& value) {
  fail(where, "expected an adapter without {}, got {}: not supported", in_quotes(key),
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

// The folder itself; of a run its newest whole checkpoint.
fs::path adapter_folder(const fs::path& path) {
  if (fs::is_directory(path / "checkpoints")) {
    const FoundCheckpoint found = find_newest_valid(path / "checkpoints");
    for (const auto& s : found.skipped)
      fmt::print(stderr, "skipped {}: {}\n", s.dir.string(), s.reason);
    if (!found.dir) fail(path.string(), "expected a whole checkpoint in checkpoints, got none");
    return *found.dir;
  }
  if (!fs::exists(path / config_file))
    fail(path.string(), "expected an adapter's folder with {}, got none there", config_file);
  if (fs::exists(path / "manifest.json"))
    if (const auto problem = verify_checkpoint(path))
      fail(path.string(), "expected a whole checkpoint, got: {}", *problem);
  return path;
}

AdapterConfig read_config(const fs::path& dir) {
  const fs::path file = dir / config_file;
  return adapter_from_json(read_json(file, {.max_bytes = 16 << 20}), file.string());
}

std::string tensor_name(const LoraModule& m, const char* which) {
  return fmt::format("{}{}.{}.weight", peft_prefix, m.path, which);
}

const StoredTensor& checked_tensor(const Safetensors& file, const std::string& where,
                                   const std::string& name, int64_t rows, int64_t cols) {
  const StoredTensor* t = file.find(name);
  if (!t) {
    if (const auto other = file.foreign().find(name); other != file.foreign().end())
      fail(where, "expected {} in a float type, got {}", name, other->second);
    fail(where, "expected tensor {} ({}, {}), got none of that name", name, rows, cols);
  }
  if (t->shape != std::vector<int64_t>{rows, cols}) {
    std::string shape;
    for (const int64_t d : t->shape) shape += (shape.empty() ? "" : ", ") + std::to_string(d);
    fail(where, "expected {} to be ({}, {}), got ({})", name, rows, cols, shape);
  }
  if (!is_float(t->dtype))
    fail(where, "expected {} in a float type, got {}", name, to_string(t->dtype));
  return *t;
}

// Every tensor the modules need, and no other.
void check_tensors(const Safetensors& file, const std::string& where, const LoraMatrices& matrices,
                   int64_t rank) {
  std::set<std::string> known;
  for (const auto& [matrix, modules] : matrices)
    for (const LoraModule& m : modules) {
      checked_tensor(file, where, *known.insert(tensor_name(m, "lora_A")).first, rank, m.in);
      checked_tensor(file, where, *known.insert(tensor_name(m, "lora_B")).first, m.out, rank);
    }
  const auto refuse_unknown = [&](const std::string& name) {
    if (!known.contains(name))
      fail(where, "expected only lora_A and lora_B of the targets, got {} too", in_quotes(name));
  };
  for (const auto& [name, tensor] : file.tensors()) refuse_unknown(name);
  for (const auto& [name, type] : file.foreign()) refuse_unknown(name);
}

ordered_json number(float x) {
  return std::abs(x) < 1e9f && x == float(int64_t(x)) ? ordered_json(int64_t(x)) : ordered_json(x);
}

std::vector<TensorToWrite> adapter_tensors(const ModelConfig& c, ParamStore& store, DType dtype) {
  std::vector<TensorToWrite> out;
  const Part part = store.made(Part::master) ? Part::master : Part::weight;
  for (const auto& [matrix, modules] : lora_matrices(c))
    for (const LoraModule& m : modules) {
      const FileTensor a{.name = {}, .shape = {c.lora.rank, m.in}, .param = {}, .row = m.a_row};
      const auto add = [&](const char* which, const FileTensor& t) {
        out.push_back(
            {tensor_name(m, which), dtype, t.shape,
             [t, &store, dtype, part, param = matrix + "." + which](const ByteSink& sink) {
               sink(from_floats(from_rows(t, store.values(part, param)), dtype));
             }});
      };
      add("lora_A", a);
      add("lora_B", m.b);
    }
  return out;
}

}  // namespace

AdapterConfig adapter_from_json(const json& j, const std::string& where) {
  if (!j.is_object()) fail(where, "expected an object, got another value");
  if (const json type = j.value("peft_type", json()); type != "LORA")
    fail(where, "expected peft_type LORA, got {}",
         in_quotes(type.dump(-1, ' ', false, json::error_handler_t::replace)));
  for (const auto& [key, value] : j.items())
    if (!among(idle_keys, key) && !among(used_keys, key) && !says_nothing(value))
      refuse(where, key, value);
  if (!j.contains("r")) fail(where, "expected the key r, got none");
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

bool is_adapter_folder(const fs::path& path) { return fs::exists(path / config_file); }

std::string AdapterSource::base_of(const fs::path& path) {
  return read_config(adapter_folder(path)).base;
}

AdapterSource AdapterSource::open(const fs::path& path, const ModelConfig& base) {
  const fs::path dir = adapter_folder(path);
  AdapterSource s;
  s.config_ = read_config(dir);
  s.model_ = base.resolve();
  // A list may name modules that only other models have; those that matter have tensors.
  std::vector<std::string>& targets = s.config_.lora.targets;
  const std::vector<std::string> listed = targets;
  std::erase_if(targets, [&](const std::string& t) { return !is_lora_target(s.model_, t); });
  if (targets.empty()) targets = listed;
  s.model_.lora = s.config_.lora;
  const fs::path index = dir / weights_index;
  const fs::path file = fs::exists(index) ? index : dir / weights_file;
  if (!fs::exists(file))
    fail(dir.string(), "expected {}, got {}", weights_file,
         fs::exists(dir / "adapter_model.bin") ? "only adapter_model.bin, which is not read"
                                               : "none there");
  s.path_ = dir;
  s.file_ = std::make_shared<const Safetensors>(file);
  check_tensors(*s.file_, file.string(), lora_matrices(s.model_), s.model_.lora.rank);
  return s;
}

void AdapterSource::load(ParamStore& store) const {
  for (const auto& [matrix, modules] : lora_matrices(model_)) {
    std::vector<float> a, b;
    const auto add = [&](std::vector<float>& to, const std::vector<float>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    for (const LoraModule& m : modules) {
      add(a, to_floats(file_->at(tensor_name(m, "lora_A"))));
      add(b, to_rows(m.b, to_floats(file_->at(tensor_name(m, "lora_B")))));
    }
    store.set(matrix + ".lora_A", a);
    store.set(matrix + ".lora_B", b);
  }
}

std::vector<FileDigest> write_adapter(const fs::path& dir, const ModelConfig& config,
                                      ParamStore& store, const std::string& base, DType dtype) {
  const ModelConfig c = config.resolve();
  AdapterConfig written{c.lora, base};
  if (among(c.lora.targets, "all-linear")) written.lora.targets = lora_target_names(c);
  write_file_atomic(dir / config_file, adapter_config_json(written, hf_type(c) == HfType::gpt2));
  return {write_safetensors(dir, weights_file, adapter_tensors(c, store, dtype)),
          digest_file(dir, config_file)};
}

}  // namespace hearth
