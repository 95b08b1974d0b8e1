#include "train/checkpoint/checkpoint_saver.h"

#include <system_error>

#include "core/memory_budget.h"
#include "sys/error.h"
#include "sys/terminal.h"

namespace hearth::inline train {
namespace fs = std::filesystem;

namespace {

std::string gibibytes(int64_t bytes) {
  return fmt::format("{:.1f} GiB", double(bytes) / (1 << 30));
}

}  // namespace

CheckpointSaver::CheckpointSaver(fs::path run, Spec spec)
    : run_(std::move(run)), spec_(std::move(spec)) {}

CheckpointSaver::~CheckpointSaver() {
  try {
    finish();
  } catch (const std::exception& e) {  // nobody is left to throw it to
    try {
      warn(fmt::format("the last checkpoint was not written: {}", e.what()));
    } catch (...) {}
  }
}

void CheckpointSaver::warn(const std::string& line) const {
  spec_.warn ? spec_.warn(line) : say_problem(line);
}

bool CheckpointSaver::reserve(const ModelConfig& model, ParamStore& store) {
  if (snapshot_ && &snapshot_->source() == &store) return true;
  if (no_room_) return false;
  finish();  // it may be reading the snapshot of another store
  snapshot_.reset();
  auto made = std::make_unique<ParamSnapshot>(store, bool(model.lora));
  const MemoryBudget budget = spec_.snapshot_limit >= 0
                                  ? MemoryBudget(spec_.snapshot_limit)
                                  : MemoryBudget::for_snapshot(made->memory());
  std::string why;
  if (!budget.fits(made->bytes())) {
    why = fmt::format("it needs {}, of which {} may be used", gibibytes(made->bytes()),
                      gibibytes(budget.bytes()));
  } else {
    try {
      made->make();
    } catch (const Error& e) { why = e.what(); }
  }
  if (why.empty()) {
    snapshot_ = std::move(made);
    return true;
  }
  no_room_ = true;
  warn(
      fmt::format("no room in memory for a snapshot of a checkpoint: {}; training waits while one "
                  "is written",
                  why));
  return false;
}

void CheckpointSaver::save(ModelCheckpoint c, ParamStore& store) {
  finish();
  if (!reserve(c.model, store)) return save_in_place(c, store);
  snapshot_->take();
  pending_ = std::move(c), tokenizer_.reset();
  if (pending_.tokenizer) tokenizer_ = *pending_.tokenizer;  // a cheap copy, which the thread reads
  pending_.tokenizer = tokenizer_ ? &*tokenizer_ : nullptr;
  try {
    writing_ = std::async(std::launch::async, [this] { return write_pending(); });
  } catch (const std::system_error&) {  // no thread: nothing is written beside training
    newest_ = write_pending();
  }
}

fs::path CheckpointSaver::write_pending() const {
  return save_model_checkpoint(run_, pending_, snapshot_->params());
}

void CheckpointSaver::save_in_place(const ModelCheckpoint& c, ParamStore& store) {
  finish();
  newest_ = save_model_checkpoint(run_, c, store);
}

std::optional<fs::path> CheckpointSaver::finish() {
  if (!writing_.valid()) return newest_;
  try {
    newest_ = writing_.get();
  } catch (const Error& e) {
    // The snapshot is still there, and later checkpoints refer to this one.
    warn(fmt::format("a checkpoint could not be written and is tried again: {}", e.what()));
    newest_ = write_pending();
  }
  return newest_;
}

}  // namespace hearth::inline train
