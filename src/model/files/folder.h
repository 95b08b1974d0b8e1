// Model folders: config, weights and tokenizer as files, in Hugging Face's layouts (HfType,
// exact in both directions); models that none of them has are written as model_type "hearth".
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/params.h"
#include "formats/safetensors.h"
#include "model/lora.h"

namespace hearth::inline model {

// A model on disk that can be loaded into a ParamStore made for config().
class ModelSource {
 public:
  // Opens a run folder (its newest valid checkpoint; prints skipped ones on stderr), a checkpoint
  // folder, a Hugging Face folder, a llama2.c .bin, a minGPT .json or a .gguf. A missing,
  // unexpected or misshapen tensor is an error that names it. For an adapter (a run, a checkpoint
  // or a PEFT folder) it opens the base model with the adapter; see find_base().
  //
  // With `adapter` (see AdapterSource), config().lora is its spec and load() also fills the
  // adapters. An empty path means none.
  static ModelSource open(const std::filesystem::path&, const std::filesystem::path& adapter = {});
  // The same model without adapters: load() merges them into the weights, in fp32.
  ModelSource merged() const;

  const ModelConfig& config() const { return config_; }
  DType dtype() const { return dtype_; }  // type of the embedding; f32 for quantised weights
  // Fills every parameter. `check` is called between parameters and may throw.
  void load(
      ParamStore&, const std::function<void()>& check = [] {}) const;
  // The path for Tokenizer::load: the folder (the adapter's if it has a tokenizer), a llama2.c
  // model's tok*.bin, or the .gguf; empty: none.
  const std::filesystem::path& tokenizer() const { return tokenizer_; }
  const std::filesystem::path& path() const { return path_; }  // for a run: the chosen checkpoint
  const std::filesystem::path& adapter() const { return adapter_; }  // its folder; empty: none

 private:
  ModelConfig config_;
  DType dtype_ = DType::f32;
  std::filesystem::path path_, tokenizer_, adapter_;
  std::function<void(ParamStore&, const std::function<void()>& check)>
      load_;  // owns the mapped files
};

// The model that training starts from. Adapters in it are merged into their base. New adapters on
// top of merged ones are refused, since their base would not exist on disk.
ModelSource open_base(const std::filesystem::path& model, const LoraConfig&);

// SHA-256 over the files that contain weights and config.
std::string model_digest(const ModelSource&);
// A model that a run reads again when it is resumed or used.
struct HeldModel {
  std::string digest;               // model_digest(); empty: there is no such model
  std::filesystem::path path = {};  // for ModelSource::open(); for merged adapters their folder

  explicit operator bool() const { return !digest.empty(); }
  nlohmann::json json() const { return digest.empty() ? nlohmann::json() : nlohmann::json(digest); }
};
// If the model is a checkpoint of another run, marks it, so that continuing that run does not
// delete it.
HeldModel hold_model(const ModelSource&);
// The model that a run begins or began from: `model` or, if that is a run that has been continued
// since, the checkpoint of it that the latter run noted.
std::filesystem::path base_in_run(const std::filesystem::path& run,
                                  const std::filesystem::path& model);

// Finds the base model of an adapter folder: the path in adapter_config.json, relative to the
// current folder, the adapter or its run, else where the run last found it. Throws if it is at none
// of them or, if the run recorded a digest, if the files differ.
std::filesystem::path find_base(const std::filesystem::path& adapter);

// config.json and generation_config.json as text; a token of -1 means none. The layout is
// hf_type().
std::string hf_config_json(const ModelConfig&, DType weights, int32_t bos, int32_t eos);
// Keeps all fields of `base`, the object of the model this one was made from, except the tokens.
std::string hf_generation_config_json(int32_t bos, int32_t eos,
                                      const std::vector<int32_t>& more_ends = {},
                                      const nlohmann::ordered_json& base = {});
ModelConfig config_from_hf_json(const nlohmann::json&, const std::string& where);

// The weights with Hugging Face names, in `dtype`, read from the store while they are written.
std::vector<TensorToWrite> hf_tensors(const ModelConfig&, ParamStore&, DType dtype);

}  // namespace hearth::inline model
