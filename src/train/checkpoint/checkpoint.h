// What a checkpoint of a training run holds beside its model folder: state/optimizer.safetensors
// (or shards of it) and state/trainer.json. Together they make a resumed run the same run, to the
// bit. A run with adapters saves only the adapters, in PEFT's layout.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/params.h"
#include "model/config.h"
#include "text/tokenizer/tokenizer.h"
#include "train/run_state.h"

namespace hearth::inline train {

// A checkpoint of any task. `trainer` is what the run continues from; its `run` is a RunState.
struct ModelCheckpoint {
  ModelConfig model;
  std::string base = {};  // with model.lora: the model that the adapters belong to
  const Tokenizer* tokenizer = nullptr;
  nlohmann::ordered_json chat_template = {};  // its text, or the list tokenizer_config.json had
  std::vector<int32_t> ends = {};             // tokens that end a text, beside the tokenizer's
  nlohmann::ordered_json generation = {};     // generation_config.json of the base; null: none
  nlohmann::json trainer = {};
  int64_t step = 0;
  int keep = 3;
  // Files that `trainer` refers to and that are appended to meanwhile: on the disk before the
  // checkpoint is.
  std::vector<std::filesystem::path> logs = {};
};
// Writes run/checkpoints/step-N whole or not at all, then reconciles the folder with it
// (train/run_folder.h). Returns its path. Files are written and hashed several at a time; an
// optimizer state above `shard_bytes` is cut into shards so that this can be done.
std::filesystem::path save_model_checkpoint(const std::filesystem::path& run,
                                            const ModelCheckpoint&, ParamStore&,
                                            int64_t shard_bytes = int64_t(512) << 20);
// Reads weights and moments back; gives `trainer`. A checkpoint that keeps only the weights of the
// best step is an error.
nlohmann::json load_model_checkpoint(const std::filesystem::path& dir, const ModelConfig&,
                                     ParamStore&);

// An error that names the first setting that was another when the run began, `free` ones aside.
void expect_same_settings(const nlohmann::json& saved, const nlohmann::json& now,
                          std::span<const std::string_view> free, const std::string& where);

}  // namespace hearth::inline train
