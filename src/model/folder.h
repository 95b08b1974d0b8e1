// Model folders: config, weights and tokenizer as files. A folder is a Hugging Face one (gpt2, llama,
// qwen3 layouts, exact both ways); shapes those cannot express are written as model_type "hearth".
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/params.h"
#include "io/safetensors.h"
#include "model/config.h"

namespace hearth {

// A model on disk, ready to be read into a ParamStore made for config().
class ModelSource {
 public:
  // A run folder (its newest valid checkpoint; says on stderr when it had to skip one), a checkpoint
  // folder, a Hugging Face folder, a llama2.c .bin, or a minGPT .json.
  static ModelSource open(const std::filesystem::path&);

  const ModelConfig& config() const { return config_; }
  // Fills every parameter; a missing, surplus or misshapen tensor is an error that names it.
  void load(ParamStore&) const;
  // Where Tokenizer::load finds the tokenizer: the folder, or empty when it has none.
  const std::filesystem::path& tokenizer() const { return tokenizer_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  ModelConfig config_;
  std::filesystem::path path_, tokenizer_;
  std::shared_ptr<const void> file_;  // keeps the mapped files alive
  std::function<void(ParamStore&)> load_;
};

// config.json and generation_config.json of a folder, as text.
std::string hf_config_json(const ModelConfig&, DType weights, int32_t bos, int32_t eos);
std::string hf_generation_config_json(int32_t bos, int32_t eos);
ModelConfig config_from_hf_json(const nlohmann::json&, const std::string& where);

// The weights under their Hugging Face names, in `dtype`, read from the store while written.
std::vector<TensorToWrite> hf_tensors(const ModelConfig&, ParamStore&, DType dtype);

}  // namespace hearth
