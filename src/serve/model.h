// ServedModel: a model loaded from its folder, with the engine that runs it. Several models share
// a backend and its memory.
#pragma once

#include <filesystem>
#include <memory>
#include <span>

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
  // Loads the weights only; start() makes the engine.
  ServedModel(ModelSource, Backend&, const WeightsSpec&);
  void start(EngineSpec);
  // The most memory that an engine with this spec could use.
  int64_t wanted_bytes(const EngineSpec&) const;

  // Defaults for sampling fields that a request omits.
  const SamplingSpec& defaults() const { return defaults_; }
  void set_defaults(const SamplingSpec& s) { defaults_ = s; }
  // Tokens that end a text according to generation_config.json, besides eos.
  const std::vector<int32_t>& ends() const { return model_.ends(); }

  const ModelConfig& config() const { return model_.config(); }
  const Tokenizer& tokenizer() const { return model_.tokenizer(); }
  const ChatPrompt& chat() const { return chat_; }
  Engine& engine() { return *engine_; }
  ConstraintMaker& constraints() const { return *constraints_; }
  int64_t context() const { return engine_->context(); }  // maximum tokens of prompt and completion
  // Why the context is smaller than the model's; empty if it is not, or if it was requested.
  const std::string& context_note() const { return context_note_; }
  int64_t longest_token() const { return longest_token_; }  // bytes
  // tokenizer_config.json with bos_token, eos_token and chat_template, even if stored in other
  // files.
  const nlohmann::ordered_json& tokenizer_info() const { return tokenizer_info_; }

 private:
  Backend& backend_;
  LoadedModel model_;
  ChatPrompt chat_;
  nlohmann::ordered_json tokenizer_info_;
  int64_t longest_token_;
  std::string context_note_;
  SamplingSpec defaults_ = {};
  std::unique_ptr<ConstraintMaker> constraints_;
  std::unique_ptr<Engine> engine_;
};

// A model and its name in the API.
struct NamedModel {
  std::string name;
  std::unique_ptr<ServedModel> model;
};

// Starts the engines of loaded models. They share the memory that one engine alone would get; the
// caches are limited by spec.memory_bytes if that is given. Returns the plan in one sentence.
// Throws if a model does not fit.
std::string start_engines(std::span<const NamedModel>, const Backend&, const EngineSpec&);

}  // namespace hearth::inline serve
