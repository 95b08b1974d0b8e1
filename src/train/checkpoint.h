// What a checkpoint of a training run holds beside its model folder: state/optimizer.safetensors
// and state/trainer.json. Together they make a resumed run the same run, to the bit. Of a run with
// adapters it holds those alone, as PEFT lays them out.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/params.h"
#include "model/config.h"
#include "tokenizer/tokenizer.h"
#include "train/config.h"
#include "train/run_state.h"

namespace hearth {

struct CheckpointSpec {
  const ModelConfig& model;
  const TrainConfig& train;
  const Tokenizer* tokenizer = nullptr;  // saved beside the weights when there is one
  std::string base = {};                 // with model.lora: the model that the adapters belong to
};

// A checkpoint of any kind of run: what the run goes on with is a JSON object of its own, whose
// `run` has step, best_step and perhaps good_step (train/run_state.h).
struct ModelCheckpoint {
  const ModelConfig& model;
  std::string base = {};  // with model.lora: the model that the adapters belong to
  const Tokenizer* tokenizer = nullptr;
  nlohmann::ordered_json chat_template = {};  // its text, or the list tokenizer_config.json had
  std::vector<int32_t> ends = {};             // tokens that end a text, beside the tokenizer's
  nlohmann::ordered_json generation = {};     // generation_config.json of the base; null: none
  nlohmann::json trainer = {};
  int64_t step = 0;
  int keep = 3;
};
// Writes run/checkpoints/step-N whole or not at all, then reconciles the folder with it
// (train/run_folder.h). Returns its path.
std::filesystem::path save_model_checkpoint(const std::filesystem::path& run,
                                            const ModelCheckpoint&, ParamStore&);
// Reads weights and moments back; gives `trainer`.
nlohmann::json load_model_checkpoint(const std::filesystem::path& dir, const ModelConfig&,
                                     ParamStore&);

// Settings that may change between the parts of one pretraining run without changing what it
// computes.
std::span<const std::string_view> free_pretrain_settings();

// An error that names the first setting that was another when the run began, `free` ones aside.
void expect_same_settings(const nlohmann::json& saved, const nlohmann::json& now,
                          std::span<const std::string_view> free, const std::string& where);

// The same of a pretraining run.
std::filesystem::path save_checkpoint(const std::filesystem::path& run, const CheckpointSpec&,
                                      ParamStore&, const RunState&);

// Reads weights (or adapters), moments and state back. A checkpoint of another model or with other
// settings that change the result is an error naming the first that differs.
RunState load_checkpoint(const std::filesystem::path& dir, const CheckpointSpec&, ParamStore&);

}  // namespace hearth
