// Model folders: config, weights and tokenizer as files. A folder is a Hugging Face one (gpt2,
// llama, qwen3 layouts, exact both ways); shapes those cannot express are written as model_type
// "hearth".
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/params.h"
#include "formats/safetensors.h"
#include "model/config.h"

namespace hearth {

// A model on disk, ready to be read into a ParamStore made for config().
class ModelSource {
 public:
  // A run folder (its newest valid checkpoint; says on stderr when it had to skip one), a
  // checkpoint folder, a Hugging Face folder, a llama2.c .bin, a minGPT .json, or a .gguf. A
  // missing, surplus or misshapen tensor is an error that names it. Of adapters (a run, a
  // checkpoint or a PEFT folder) it is the base they name with them; see find_base().
  //
  // With `adapter` (see AdapterSource), which goes beside a base: config().lora is its spec, and
  // load() fills the adapters too. An empty path is none.
  static ModelSource open(const std::filesystem::path&, const std::filesystem::path& adapter = {});
  // The same model without adapters: load() adds them to the weights, in fp32.
  ModelSource merged() const;

  const ModelConfig& config() const { return config_; }
  DType dtype() const { return dtype_; }  // of the embedding; quantised weights count as f32
  // Fills every parameter.
  void load(ParamStore&) const;
  // What Tokenizer::load takes: the folder (the adapter's when it has one), a llama2.c model's
  // tok*.bin, or the .gguf; empty when there is none.
  const std::filesystem::path& tokenizer() const { return tokenizer_; }
  const std::filesystem::path& path() const { return path_; }  // of a run: the checkpoint chosen
  const std::filesystem::path& adapter() const { return adapter_; }  // its folder; empty: none

 private:
  ModelConfig config_;
  DType dtype_ = DType::f32;
  std::filesystem::path path_, tokenizer_, adapter_;
  std::function<void(ParamStore&)> load_;  // holds the mapped files
};

// SHA-256 over the files that weights and shape are read from.
std::string model_digest(const ModelSource&);

// The base model of an adapter's folder: the path that adapter_config.json names, from the current
// folder, from the adapter's or from its run's, else where the run last saw it. An error where it
// is at none of them or, if the run has noted a digest, has other files now.
std::filesystem::path find_base(const std::filesystem::path& adapter);

// config.json and generation_config.json of a folder, as text; a token of -1 is none. The layout is
// the first of gpt2, llama, qwen3 whose keys say all that the model computes, else "hearth".
std::string hf_config_json(const ModelConfig&, DType weights, int32_t bos, int32_t eos);
// Of `base`, the object of a model that this one was made from, all fields but the tokens are kept.
std::string hf_generation_config_json(int32_t bos, int32_t eos,
                                      const std::vector<int32_t>& more_ends = {},
                                      const nlohmann::ordered_json& base = {});
ModelConfig config_from_hf_json(const nlohmann::json&, const std::string& where);

// The weights under their Hugging Face names, in `dtype`, read from the store while written.
std::vector<TensorToWrite> hf_tensors(const ModelConfig&, ParamStore&, DType dtype);

}  // namespace hearth
