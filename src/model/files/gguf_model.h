// Models in GGUF files: llama.cpp's keys and tensor names for gpt2, llama and qwen3, both ways.
#pragma once

#include "core/params.h"
#include "formats/gguf/gguf.h"
#include "model/files/model_file.h"

namespace hearth {

// Quantised tensors come out as f32.
OpenedModel open_gguf(const std::filesystem::path&);

struct GgufSpec {
  GgmlType type = GgmlType::f32;  // of matrices; vectors and learned positions stay f32
  std::string name = {};
  std::filesystem::path tokenizer = {};  // what Tokenizer::load takes; empty: none
  std::string chat_template = {};
};

// Returns how many matrices became F16 because their rows are not whole blocks. A model that
// llama.cpp's gpt2, llama and qwen3 do not compute is an error.
int64_t write_gguf_model(const std::filesystem::path&, const ModelConfig&, ParamStore&,
                         const GgufSpec&);

}  // namespace hearth
