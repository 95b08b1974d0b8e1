// CheckpointSaver: checkpoints that are written while training goes on. Training waits only for a
// copy of the weights and the optimizer state into the host's memory.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "train/checkpoint/checkpoint.h"

namespace hearth::inline train {

// The owner calls finish() before it reads, links or removes a checkpoint of the run. The saver
// must not outlive the backend of the stores it saves.
class CheckpointSaver {
 public:
  struct Spec {
    // Is told once that there is no room for a snapshot; stderr if empty.
    std::function<void(const std::string&)> warn = {};
    int64_t snapshot_limit = -1;  // bytes; -1: half of the memory available to this process
  };
  explicit CheckpointSaver(std::filesystem::path run) : CheckpointSaver(std::move(run), {}) {}
  CheckpointSaver(std::filesystem::path run, Spec);
  ~CheckpointSaver();  // waits for a checkpoint that is being written
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  // Makes the memory of the snapshot ahead of the first save(), for pinned memory takes a card a
  // second per few GB. Whether there was room for it.
  bool reserve(const ModelConfig&, ParamStore&);

  // Waits for the checkpoint before this one, copies the store and returns; a thread of its own
  // then does what save_model_checkpoint() does. Where there is no room for a snapshot, it is
  // save_in_place(). A checkpoint before that could not be written is tried again, as in finish().
  void save(ModelCheckpoint, ParamStore&);
  // Writes from the store and returns when the checkpoint is committed: faster and smaller where
  // nothing is left to run beside it, as at the end of a run.
  void save_in_place(const ModelCheckpoint&, ParamStore&);

  // Whether a checkpoint is being written.
  bool busy() const {
    return writing_.valid() &&
           writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  }

  // Waits, and gives the newest checkpoint that was committed; nothing if none was. One that could
  // not be written is tried once more from its snapshot, since later ones refer to it; an error of
  // that is thrown.
  std::optional<std::filesystem::path> finish();

 private:
  struct Snapshot;

  std::filesystem::path write_pending() const;
  void warn(const std::string&) const;

  std::filesystem::path run_;
  Spec spec_;
  bool no_room_ = false;
  std::unique_ptr<Snapshot> snapshot_;
  ModelCheckpoint pending_ = {};  // what is being written of the snapshot
  std::optional<Tokenizer> tokenizer_;
  std::optional<std::filesystem::path> newest_;
  std::future<std::filesystem::path> writing_;  // last: it reads the snapshot
};

}  // namespace hearth::inline train
