// A model's file once opened: what the readers of the several formats give to ModelSource.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "formats/stored_tensor.h"
#include "model/files/hf_names.h"

namespace hearth {

struct ModelFile {
  std::string where;
  std::shared_ptr<const void> owner;  // of the bytes below
  StoredTensors tensors;
  std::map<std::string, std::string, std::less<>> foreign;  // name -> type we do not read
  FileLayout layout;
};

struct OpenedModel {
  ModelConfig config;
  ModelFile file;
  std::filesystem::path path, tokenizer;
};

}  // namespace hearth
