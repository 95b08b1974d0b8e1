// What a training checkpoint holds besides its model folder: state/optimizer.safetensors (or its
// shards) and state/trainer.json. With them a resumed run is bit-identical to an uninterrupted one.
// A run with adapters saves only the adapters, in PEFT's layout.
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

// A checkpoint of any task. `trainer` is the state that the run continues from; its `run` is a
// RunState.
struct ModelCheckpoint {
  ModelConfig model;
  std::string base = {};  // with model.lora: path of the model that the adapters belong to
  const Tokenizer* tokenizer = nullptr;
  nlohmann::ordered_json chat_template = {};  // its text, or the list from tokenizer_config.json
  std::vector<int32_t> ends = {};             // tokens that end a text, besides the tokenizer's
  nlohmann::ordered_json generation = {};     // generation_config.json of the base; null: none
  nlohmann::json trainer = {};
  int64_t step = 0;
  int keep = 3;
  // Files that `trainer` refers to and that the run appends to. They are synced before the
  // checkpoint is committed.
  std::vector<std::filesystem::path> logs = {};
};
// Writes run/checkpoints/step-N atomically, then reconciles the folder with it. Returns its path.
// Files are written and hashed in parallel; an optimizer state above `shard_bytes` is split into
// shards for this.
std::filesystem::path save_model_checkpoint(const std::filesystem::path& run,
                                            const ModelCheckpoint&, ParamStore&,
                                            int64_t shard_bytes = int64_t(512) << 20);
// Loads the weights and the optimizer state and returns `trainer`. A checkpoint without optimizer
// state (one kept only as the best) is an error.
nlohmann::json load_model_checkpoint(const std::filesystem::path& dir, const ModelConfig&,
                                     ParamStore&);

// A committed checkpoint is the only truth of a run; everything else in the folder follows from it.
// reconcile() points `latest` at `checkpoint`, the newest, and `best` at the checkpoint that its
// state names. It then removes older checkpoints, except the last `keep`, those two, and the one
// that bad steps roll back to. A checkpoint that is kept only because it is the best loses its
// optimizer state. Called after every commit and on resume, so that a kill in between loses
// nothing.
void reconcile(const std::filesystem::path& run, const std::filesystem::path& checkpoint, int keep);

// Rolls the folder back to `checkpoint`: removes later ones, since a resumed run takes the newest.
void go_back_to(const std::filesystem::path& run, const std::filesystem::path& checkpoint,
                int keep);

}  // namespace hearth::inline train
