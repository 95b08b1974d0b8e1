// ServedModel: a model loaded from its folder, with the engine that runs it.
#pragma once

#include <filesystem>

#include "infer/engine.h"
#include "infer/loaded_model.h"
#include "serve/chat_prompt.h"

namespace hearth::inline serve {

struct ModelPaths {
  std::filesystem::path model, adapter = {};  // adapter may be empty
};

class ServedModel {
 public:
  // Sets the tokenizer of `spec`. The backend must outlive the model.
  ServedModel(const ModelPaths&, Backend&, const WeightsSpec&, EngineSpec spec = {});
  ServedModel(ModelSource, Backend&, const WeightsSpec&, EngineSpec);

  // Defaults for sampling fields that a request omits.
  const SamplingSpec& defaults() const { return defaults_; }
  void set_defaults(const SamplingSpec& s) { defaults_ = s; }
  // Tokens that end a text according to generation_config.json, besides eos.
  const std::vector<int32_t>& ends() const { return model_.ends(); }

  const Tokenizer& tokenizer() const { return model_.tokenizer(); }
  const ChatPrompt& chat() const { return chat_; }
  Engine& engine() { return *engine_; }
  int64_t context() const { return engine_->context(); }  // maximum tokens of prompt and completion
  // Why the context is smaller than the model's; empty if it is not, or if it was requested.
  const std::string& context_note() const { return context_note_; }
  int64_t longest_token() const { return longest_token_; }  // bytes
  // tokenizer_config.json with bos_token, eos_token and chat_template, even if stored in other
  // files.
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

}  // namespace hearth::inline serve
