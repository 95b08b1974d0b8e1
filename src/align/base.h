// What runs of alignment have in common: the base that adapters in training stand beside, the
// tokenizer and the template that examples go through, and knowing a run again when it goes on.
#pragma once

#include "chat/chat_template.h"
#include "model/folder.h"
#include "model/lora.h"
#include "optim/schedule.h"

namespace hearth {

// The model that a run starts from. Adapters are merged into the weights of their base; adapters in
// training on top of them are refused, since their own base would be nowhere on the disk.
ModelSource open_base(const std::filesystem::path& model, const LoraConfig&);

// The model of `source`, resolved, with the adapters that are asked for.
ModelConfig config_in_training(const ModelSource& source, const LoraConfig&);
// Fills the base of a store made for that, and begins the adapters.
void begin_adapters(const ModelSource&, ParamStore&, uint64_t seed);

// The tokens that end an answer: those the model's folders name, and what closes a turn of `chat`
// where there is one.
std::vector<int32_t> answer_ends_of(const ModelSource&, const ChatTemplate* chat, const Tokenizer&);

// Where a model is, seen from a run: what finds the base of adapters after both have been moved.
std::string path_from_run(const std::filesystem::path& model, const std::filesystem::path& run);

// What a checkpoint says of the base; null without adapters.
nlohmann::json base_to_json(const ModelSource&, const ModelConfig& in_training);
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

// Schedules whose decay has a length of its own are pretraining's.
void expect_schedule_without_decay(Schedule);

// For methods whose passes have no dropout: a LoraConfig that asks for some is an error.
void expect_no_dropout(const LoraConfig&, std::string_view method);

}  // namespace hearth
