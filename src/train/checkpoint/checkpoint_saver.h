// CheckpointSaver: writes checkpoints while training continues. Training waits only until the
// weights and the optimizer state are copied into host memory.
#pragma once

#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "optim/snapshot.h"
#include "train/checkpoint/checkpoint.h"

namespace hearth::inline train {

// The owner calls finish() before it reads, links or removes a checkpoint of the run. The saver
// must not outlive the backend of the stores it saves.
class CheckpointSaver {
 public:
  struct Spec {
    // Called once if there is not enough memory for a snapshot; empty: prints to stderr.
    std::function<void(const std::string&)> warn = {};
    int64_t snapshot_limit = -1;  // bytes; -1: MemoryBudget::for_snapshot()
  };
  explicit CheckpointSaver(std::filesystem::path run) : CheckpointSaver(std::move(run), {}) {}
  CheckpointSaver(std::filesystem::path run, Spec);
  ~CheckpointSaver();  // waits for a checkpoint that is being written
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  // The memory of the snapshot, of which pinned memory takes a second per GB or so. plan() decides
  // whether there is room and says so if there is not, but allocates nothing. prepare() allocates
  // it beside training if the `seconds` that are left until the first save() suffice, and else
  // before it returns. reserve() returns when it is allocated, or false without room; save() calls
  // it.
  bool plan(const ModelConfig&, ParamStore&);
  void prepare(const ModelConfig&, ParamStore&, double seconds);
  bool reserve(const ModelConfig&, ParamStore&);

  // Waits for the previous checkpoint, copies the store and returns; a background thread then does
  // what save_model_checkpoint() does. Without memory for a snapshot this is save_in_place(). If
  // the previous checkpoint could not be written, it is tried again, as in finish().
  void save(ModelCheckpoint, ParamStore&);
  // Writes directly from the store and returns when the checkpoint is committed. Faster and smaller
  // when there is nothing to overlap with, as at the end of a run.
  void save_in_place(const ModelCheckpoint&, ParamStore&);

  // Waits, and returns the newest committed checkpoint; nothing if there is none. A checkpoint that
  // could not be written is tried once more from its snapshot, since later ones refer to it; throws
  // if that fails too.
  std::optional<std::filesystem::path> finish();

 private:
  std::filesystem::path write_pending() const;
  void warn(const std::string&) const;
  void refuse_room(const std::string& why);

  std::filesystem::path run_;
  Spec spec_;
  bool no_room_ = false;
  std::unique_ptr<ParamSnapshot> snapshot_;
  bool ready_ = false;               // the snapshot's memory is allocated
  std::future<std::string> making_;  // its memory; gives why it could not be had, or nothing
  ModelCheckpoint pending_ = {};     // the checkpoint being written from the snapshot
  std::optional<Tokenizer> tokenizer_;
  std::optional<std::filesystem::path> newest_;
  std::future<std::filesystem::path> writing_;  // last member, since the thread reads the snapshot
};

}  // namespace hearth::inline train
