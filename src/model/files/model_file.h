// An opened model file: the common result of all format readers, for ModelSource.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "formats/stored_tensor.h"
#include "model/files/hf_names.h"

namespace hearth::inline model {

struct ModelFile {
  std::string where;
  std::shared_ptr<const void> owner;  // owns the bytes below
  StoredTensors tensors;
  std::map<std::string, std::string, std::less<>> foreign;  // name -> unsupported type
  FileLayout layout;
};

struct OpenedModel {
  ModelConfig config;
  ModelFile file;
  std::filesystem::path path, tokenizer;
};

}  // namespace hearth::inline model
