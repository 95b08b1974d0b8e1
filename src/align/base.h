// The base that adapters in training stand beside. Checkpoints hold adapters alone, so a run that
// goes on reads its base again and has to know that it is still the same.
#pragma once

#include "chat/chat_template.h"
#include "model/folder.h"
#include "model/lora.h"
#include "optim/schedule.h"

namespace hearth {

// SHA-256 over the files that weights and shape are read from.
std::string model_digest(const ModelSource&);

// The model of `source`, resolved, with the adapters that are asked for.
ModelConfig config_in_training(const ModelSource& source, const LoraConfig&);
// Fills the base of a store made for that, and begins the adapters.
void begin_adapters(const ModelSource&, ParamStore&, uint64_t seed);

// The chat template beside a tokenizer as it is written there; null where there is none.
nlohmann::ordered_json written_chat_template(const std::filesystem::path& tokenizer);

// The same and its text, or ChatML where there is none.
ChatTemplate chat_template_of(const std::filesystem::path& tokenizer, const Tokenizer&);
nlohmann::ordered_json chat_source_of(const std::filesystem::path& tokenizer, const Tokenizer&);

// What a checkpoint says of the base; null without adapters.
nlohmann::json base_to_json(const ModelSource&, const ModelConfig& in_training);
// An error when the saved one is another than this.
void expect_same_base(const nlohmann::json& saved, const nlohmann::json& now,
                      const std::string& where);

// Schedules whose decay has a length of its own are pretraining's.
void expect_schedule_without_decay(Schedule);

// For methods whose passes have no dropout: a LoraConfig that asks for some is an error.
void expect_no_dropout(const LoraConfig&, std::string_view method);

}  // namespace hearth
