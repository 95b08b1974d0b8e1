// Converts any model that ModelSource opens to a Hugging Face folder, a GGUF file or both, with its
// tokenizer, chat template and generation settings.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "core/backend.h"
#include "model/files/upcycle.h"

namespace hearth::inline model {

struct ConvertSpec {
  // An empty `to` or `gguf` is not written.
  std::filesystem::path from = {}, to = {}, gguf = {};
  // An adapter to merge into the weights; then `from` may be empty and defaults to the adapter's
  // base.
  std::filesystem::path adapter = {};
  // fp32, bf16 or fp16; for a GGUF file also q8_0, q6_k, q4_k or q4_0. Empty: the type of the
  // source.
  std::string dtype = {};
  int64_t shard_bytes = 5'000'000'000;
  UpcycleSpec upcycle = {};
  // Called during the work, also by several threads at once. If it throws, nothing stays behind.
  std::function<void()> check = [] {};
};

struct Converted {
  std::string from, model_type;
  std::string dtype;   // what was written; several if matrices of a GGUF file had to be widened
  int64_t params = 0;  // of the folder, or of the GGUF file if there is no folder
  bool tokenizer = false;
  int64_t widened = 0;       // GGUF matrices in a wider type because their rows do not fit blocks
  int64_t left_out = 0;      // modules of multi-token prediction that are not in the GGUF file
  bool other_gelu = false;   // llama.cpp computes another form of GELU than the model has
  bool more_spaces = false;  // llama.cpp puts spaces before more texts than the tokenizer does
};

// `to` must be new or empty; it may be a link or a mount point.
Converted convert_model(const ConvertSpec&, Backend&);

}  // namespace hearth::inline model
