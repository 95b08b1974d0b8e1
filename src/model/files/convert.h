// A model from any file or folder that ModelSource opens, written as a Hugging Face folder, as a
// GGUF file, or both, with what belongs to it: tokenizer, chat template, generation settings.
#pragma once

#include <filesystem>
#include <string>

#include "core/backend.h"

namespace hearth {

struct ConvertSpec {
  // An empty `to` or `gguf` is not written.
  std::filesystem::path from = {}, to = {}, gguf = {};
  // An adapter to merge into the weights; `from` may then be empty: the base it names.
  std::filesystem::path adapter = {};
  // fp32, bf16 or fp16; of a GGUF file also q8_0 or q4_0. Empty: as the source has it.
  std::string dtype = {};
  int64_t shard_bytes = 5'000'000'000;
};

struct Converted {
  std::string from, model_type, dtype;
  int64_t params = 0;
  bool tokenizer = false;
  int64_t widened = 0;  // matrices of a GGUF file that are F16 since their rows do not fit blocks
};

// `to` must not hold anything yet.
Converted convert_model(const ConvertSpec&, Backend&);

}  // namespace hearth
