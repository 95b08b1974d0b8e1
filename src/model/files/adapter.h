// Adapters on disk, in PEFT's layout: adapter_config.json and adapter_model.safetensors with
// base_model.model.<module>.lora_A.weight (rank, in) and lora_B.weight (out, rank).
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "model/lora.h"

namespace hearth {

// What adapter_config.json says. An option that would change the numbers in a way hearth does not
// compute (DoRA, biases, saved modules, ranks by pattern, ...) is an error that names it.
struct AdapterConfig {
  LoraSpec lora;
  std::string base;  // base_model_name_or_path, may be empty
};
AdapterConfig adapter_from_json(const nlohmann::json&, const std::string& where);
// `conv1d`: the base keeps matrices as (in, out), as GPT-2 does.
std::string adapter_config_json(const AdapterConfig&, bool conv1d);

bool is_adapter_folder(const std::filesystem::path&);

class AdapterSource {
 public:
  // An adapter's folder, a checkpoint of a run, or a run's folder (its newest whole checkpoint). A
  // missing, surplus or misshapen tensor is an error that names it.
  static AdapterSource open(const std::filesystem::path&, const ModelConfig& base);
  // The name of the base alone, for those who were given none.
  static std::string base_of(const std::filesystem::path&);

  const LoraSpec& spec() const { return config_.lora; }
  const std::filesystem::path& path() const { return path_; }  // of a run: the checkpoint chosen
  // Into a store made for the base's config with lora = spec(): the adapters, nothing else.
  void load(ParamStore&) const;

 private:
  std::filesystem::path path_;
  AdapterConfig config_;
  ModelConfig model_;
  std::shared_ptr<const Safetensors> file_;
};

// Writes both files into a folder that exists; the digests are for a checkpoint's manifest. `base`
// is what the base is called there. Fine weights (masters) are written where training keeps some.
std::vector<FileDigest> write_adapter(const std::filesystem::path& dir, const ModelConfig&,
                                      ParamStore&, const std::string& base,
                                      DType dtype = DType::f32);

}  // namespace hearth
