// What a checkpoint of a training run holds beside its model folder: state/optimizer.safetensors
// and state/trainer.json. Together they make a resumed run the same run, to the bit. Of a run with
// adapters it holds those alone, as PEFT lays them out.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "core/params.h"
#include "data/loader.h"
#include "model/config.h"
#include "tokenizer/tokenizer.h"
#include "train/config.h"

namespace hearth {

// Everything of a run that is neither a weight nor a moment.
struct RunState {
  int64_t step = 0;    // optimizer steps done
  int64_t tokens = 0;  // trained on
  Cursor cursor;
  std::string data;  // fingerprint of the files that the cursor is of; empty: not known
  UpdateState update;
  int64_t reloads = 0;           // times the run went back to a checkpoint
  int64_t good_step = -1;        // the checkpoint a row of bad steps goes back to; -1: none yet
  int64_t spikes = 0;            // of the bad steps in a row, those left out for their loss alone
  double best_val = 0;           // 0: none yet
  double last_val = 0;           // finite
  std::vector<double> losses;    // the spike guard's window
  std::vector<int64_t> batches;  // the micro-batch of each shape the run goes through
  int64_t logits_bytes = 0;      // of a chunk of logits: how the head's gradient is added up
  int64_t log_bytes = 0, samples_bytes = 0;
  double train_seconds = 0;
  // fp16: what gradients are multiplied by, and the steps since it last changed.
  double loss_scale = 65536;
  int64_t scale_steps = 0;
};

struct CheckpointSpec {
  const ModelConfig& model;
  const TrainConfig& train;
  const Tokenizer* tokenizer = nullptr;  // saved beside the weights when there is one
  std::string base = {};                 // with model.lora: the model that the adapters belong to
};

// A checkpoint of any kind of run: what it is to go on with is a JSON object of its own.
struct ModelCheckpoint {
  const ModelConfig& model;
  std::string base = {};  // with model.lora: the model that the adapters belong to
  const Tokenizer* tokenizer = nullptr;
  nlohmann::ordered_json chat_template = {};  // its text, or the list tokenizer_config.json had
  std::vector<int32_t> ends = {};             // tokens that end a text, beside the tokenizer's
  nlohmann::json trainer = {};
  int64_t step = 0;
  int keep = 3;
  int64_t good_step = -1;  // kept too, where it is another than this one
  bool best = false;
};
std::filesystem::path save_model_checkpoint(const std::filesystem::path& run,
                                            const ModelCheckpoint&, ParamStore&);
// Reads weights and moments back; gives `trainer`.
nlohmann::json load_model_checkpoint(const std::filesystem::path& dir, const ModelConfig&,
                                     ParamStore&);

// How UpdateState is kept in JSON, which has no NaN.
nlohmann::json update_to_json(const UpdateState&);
UpdateState update_from_json(const nlohmann::json&);

// An error that names the first setting that was another when the run began, `free` ones aside.
void expect_same_settings(const nlohmann::json& saved, const nlohmann::json& now,
                          std::span<const std::string_view> free, const std::string& where);

// Writes run/checkpoints/step-N whole or not at all, points `latest` (and `best` when asked) at it,
// and removes what `keep` does not cover. Returns its path.
std::filesystem::path save_checkpoint(const std::filesystem::path& run, const CheckpointSpec&,
                                      ParamStore&, const RunState&, bool best);

// For a run that goes back to the checkpoint of `step`: those after it, of the way it leaves, go,
// for a resumed run takes the newest. `latest` points at that one again.
void drop_checkpoints_after(const std::filesystem::path& run, int64_t step);

// Reads weights (or adapters), moments and state back. A checkpoint of another model or with other
// settings that change the result is an error naming the first that differs.
RunState load_checkpoint(const std::filesystem::path& dir, const CheckpointSpec&, ParamStore&);

}  // namespace hearth
