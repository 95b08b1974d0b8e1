// ServedModel: a model read from its folder, with the engine that runs it.
#pragma once

#include <filesystem>

#include "infer/engine.h"
#include "infer/loaded_model.h"
#include "serve/chat_prompt.h"

namespace hearth {

struct ModelPaths {
  std::filesystem::path model, adapter = {};  // an empty adapter is none
};

class ServedModel {
 public:
  // Of `spec` the tokenizer is set here. The backend must outlive the model.
  ServedModel(const ModelPaths&, Backend&, const WeightsSpec&, EngineSpec spec = {});
  ServedModel(ModelSource, Backend&, const WeightsSpec&, EngineSpec);

  // What a request that leaves a sampling field out is given for it.
  const SamplingSpec& defaults() const { return defaults_; }
  void set_defaults(const SamplingSpec& s) { defaults_ = s; }
  // Tokens that end a text by the model's generation_config.json, beside the end of text.
  const std::vector<int32_t>& ends() const { return model_.ends(); }

  const Tokenizer& tokenizer() const { return model_.tokenizer(); }
  const ChatPrompt& chat() const { return chat_; }
  Engine& engine() { return *engine_; }
  int64_t context() const { return engine_->context(); }  // tokens of a prompt and its completion
  // Why that is less than the model's, in a sentence; empty: it is not, or was asked for.
  const std::string& context_note() const { return context_note_; }
  int64_t longest_token() const { return longest_token_; }  // bytes
  // tokenizer_config.json with bos_token, eos_token and chat_template, wherever they stand.
  const nlohmann::ordered_json& tokenizer_info() const { return tokenizer_info_; }

 private:
  LoadedModel model_;
  ChatPrompt chat_;
  nlohmann::ordered_json tokenizer_info_;
  int64_t longest_token_;
  std::string context_note_;
  SamplingSpec defaults_ = {};
  std::unique_ptr<Engine> engine_;
};

}  // namespace hearth
