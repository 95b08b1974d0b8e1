// TrainedModel: a model in training with everything its checkpoints carry: tokenizer, chat
// template, generation settings, and the base that adapters stand beside. Here too: how a run that
// is resumed is known to be the same run.
#pragma once

#include <ctime>
#include <optional>

#include "core/exec.h"
#include "model/files/folder.h"
#include "model/lora.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace hearth::inline train {

struct TrainedModel {
  // `source` is what the weights come from; nothing: they are drawn.
  TrainedModel(ModelConfig, std::optional<ModelSource> source, Backend&, DType, bool offload);
  // The model of `source` with the adapters that are asked for.
  TrainedModel(const ModelSource&, const LoraConfig&, Backend&, DType, bool offload);
  TrainedModel(const TrainedModel&) = delete;
  TrainedModel& operator=(const TrainedModel&) = delete;

  // Fills the weights of a new run. The base of adapters is there from the start.
  void begin(uint64_t seed);
  // The settings that generation_config.json of the source has, and the tokens that end a text:
  // with those of `chat`, if there is one.
  void carry(const ChatTemplate* chat, nlohmann::ordered_json written_template);

  ModelConfig config;  // resolved
  std::optional<ModelSource> source;
  std::optional<Tokenizer> tokenizer;
  nlohmann::ordered_json chat_template;  // null: none
  nlohmann::ordered_json generation;     // null: none
  std::vector<int32_t> ends;             // tokens that end a text, beside the tokenizer's
  nlohmann::json base;                   // digest of the base of adapters or of a reference; null
  ParamStore params;
  Memory memory;
};

// The model that a run starts from. Adapters are merged into the weights of their base; adapters in
// training on top of them are refused, since their own base would be nowhere on the disk.
ModelSource open_base(const std::filesystem::path& model, const LoraConfig&);

// The tokens that end an answer: those the model's folders name, and what closes a turn of `chat`
// where there is one.
std::vector<int32_t> answer_ends_of(const ModelSource&, const ChatTemplate* chat, const Tokenizer&);

// Where a model is, seen from a run: what finds the base of adapters after both have been moved.
std::string path_from_run(const std::filesystem::path& model, const std::filesystem::path& run);

// What makes a run the one that a checkpoint is of.
struct RunIdentity {
  std::string_view kind;  // the key its settings are saved under
  const nlohmann::json settings;
  std::span<const std::string_view> free;  // settings that may be others by now
  const nlohmann::json base;               // as base_to_json
  std::string data;                        // digest of what it learns from
};
// An error where the checkpoint is of another; returns what to call it in further errors.
std::string expect_same_run(const std::filesystem::path& checkpoint, const RunIdentity&);

// The tokenizer of a model in training: there is one, it fits the model, and checkpoints can carry
// it, which is better known before the training than at its end.
Tokenizer tokenizer_beside(const ModelSource&, const ModelConfig&);

// The time that a setting of seconds means; 0: none.
inline std::optional<std::time_t> time_of(int64_t seconds) {
  return seconds ? std::optional(std::time_t(seconds)) : std::nullopt;
}

// For methods whose passes have no dropout: a LoraConfig that asks for some is an error.
void expect_no_dropout(const LoraConfig&, std::string_view method);

}  // namespace hearth::inline train
