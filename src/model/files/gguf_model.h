// Models in GGUF files: reads and writes llama.cpp's keys and tensor names for the layouts that
// llama.cpp has too.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "core/params.h"
#include "formats/gguf/gguf.h"
#include "model/files/model_file.h"
#include "text/tokenizer/gguf_vocabulary.h"

namespace hearth::inline model {

// Quantised tensors are read as f32.
OpenedModel open_gguf(const std::filesystem::path&);

struct GgufSpec {
  GgmlType type = GgmlType::f32;  // for matrices; vectors and learned positions stay f32
  std::string name = {};
  std::filesystem::path tokenizer = {};       // path for Tokenizer::load; empty: none
  nlohmann::ordered_json chat_template = {};  // one text, or a list of named ones
  TextEnds ends = {};
};

struct GgufWritten {
  int64_t widened = 0;  // matrices in a wider type because their row length does not fit blocks
  std::map<GgmlType, int64_t> matrices = {};  // how many are stored in each type
  bool more_spaces = false;  // llama.cpp puts spaces before more texts than the tokenizer does
};

// Throws for a model that none of llama.cpp's architectures computes, and for a tokenizer or a chat
// template that GGUF cannot hold.
void expect_gguf(const ModelConfig&, const GgufSpec&);
// Refuses the same before it reads a weight. `check` is called before each tensor is written.
GgufWritten write_gguf_model(
    const std::filesystem::path&, const ModelConfig&, ParamStore&, const GgufSpec&,
    const std::function<void()>& check = [] {});

}  // namespace hearth::inline model
