// TrainedModel: a model in training with everything that its checkpoints carry: tokenizer, chat
// template, generation settings, and the base of adapters.
#pragma once

#include <optional>

#include "core/exec.h"
#include "model/files/folder.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace hearth::inline train {

// Whether training changes a model's modules of multi-token prediction together with the model,
// apart from it (UpdateSpec::modules_apart), or saves them as they were.
enum class Modules : uint8_t { learn, apart, stay };

struct TrainedModel {
  // `source` is where the weights come from; nothing: random initialisation.
  TrainedModel(ModelConfig, std::optional<ModelSource> source, Backend&, DType, bool offload,
               Modules = Modules::learn);
  // The model of `source` with the adapters that the LoraConfig asks for.
  TrainedModel(const ModelSource&, const LoraConfig&, Backend&, DType, bool offload, Modules);
  TrainedModel(const TrainedModel&) = delete;
  TrainedModel& operator=(const TrainedModel&) = delete;

  // Fills the weights of a new run. The base of adapters is loaded by the constructor.
  void begin(uint64_t seed);
  // Takes over the settings in generation_config.json of the source and the tokens that end a text,
  // including those of `chat` if there is one.
  void carry(const ChatTemplate* chat, nlohmann::ordered_json written_template);
  // The part of the model that a step computes, which modules that stay do not belong to.
  ModelConfig computed() const;

  ModelConfig config;  // resolved
  Modules modules;
  std::optional<ModelSource> source;
  std::optional<Tokenizer> tokenizer;
  nlohmann::ordered_json chat_template;  // null: none
  nlohmann::ordered_json generation;     // null: none
  std::vector<int32_t> ends;             // tokens that end a text, in addition to the tokenizer's
  HeldModel base;                        // of the adapters, or the reference
  ParamStore params;
  Memory memory;
};

// Throws if checkpoints could not carry the tokenizer. The error ends with `remedy`.
void expect_savable(const Tokenizer&, std::string_view remedy);

// The tokenizer of a model in training. Checks before training that it exists, fits the model and
// can be saved with checkpoints.
Tokenizer tokenizer_beside(const ModelSource&, const ModelConfig&);

}  // namespace hearth::inline train
