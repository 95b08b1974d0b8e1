// Adapter files in PEFT's layout: adapter_config.json and adapter_model.safetensors with
// base_model.model.<module>.lora_A.weight (rank, in) and lora_B.weight (out, rank).
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "model/lora.h"

namespace hearth::inline model {

// The contents of adapter_config.json. An option that changes the computation in an unsupported way
// (DoRA, biases, saved modules, ranks by pattern, ...) is an error that names it.
struct AdapterConfig {
  LoraSpec lora;
  std::string base;  // base_model_name_or_path, may be empty
};
AdapterConfig adapter_from_json(const nlohmann::json&, const std::string& where);
// `conv1d`: the base stores matrices as (in, out), like GPT-2.
std::string adapter_config_json(const AdapterConfig&, bool conv1d);

bool is_adapter_folder(const std::filesystem::path&);

class AdapterSource {
 public:
  // Opens an adapter folder, a checkpoint of a run, or a run folder (its newest complete
  // checkpoint). A missing, unexpected or misshapen tensor is an error that names it.
  static AdapterSource open(const std::filesystem::path&, const ModelConfig& base);
  // The name of the base model stored in the adapter.
  static std::string base_of(const std::filesystem::path&);

  const LoraSpec& spec() const { return config_.lora; }
  const std::filesystem::path& path() const { return path_; }  // for a run: the chosen checkpoint
  // Loads only the adapters, into a store made for the base's config with lora = spec().
  void load(ParamStore&) const;

 private:
  std::filesystem::path path_;
  AdapterConfig config_;
  ModelConfig model_;
  std::shared_ptr<const Safetensors> file_;
};

// Writes both files to an existing folder; returns digests for a checkpoint's manifest. `base` is
// the stored name of the base model. Writes master weights if training keeps them.
std::vector<FileDigest> write_adapter(const std::filesystem::path& dir, const ModelConfig&,
                                      ParamStore&, const std::string& base,
                                      DType dtype = DType::f32);

}  // namespace hearth::inline model
