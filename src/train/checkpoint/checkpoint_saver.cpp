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

// Allocates the memory of a snapshot; returns why that failed, or nothing.
std::string allocate(ParamSnapshot& s) {
  try {
    s.source().backend().enter_thread();
    s.make();
  } catch (const std::exception& e) { return e.what(); }
  return {};
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

void CheckpointSaver::refuse_room(const std::string& why) {
  no_room_ = true;
  warn(
      fmt::format("no room in memory for a snapshot of a checkpoint: {}; training waits while one "
                  "is written",
                  why));
}

bool CheckpointSaver::plan(const ModelConfig& model, ParamStore& store) {
  if (snapshot_ && &snapshot_->source() == &store) return true;
  if (no_room_) return false;
  finish();  // it may be reading the snapshot of another store
  making_ = {};
  snapshot_.reset();
  auto planned = std::make_unique<ParamSnapshot>(store, bool(model.lora));
  const MemoryBudget budget = spec_.snapshot_limit >= 0
                                  ? MemoryBudget(spec_.snapshot_limit)
                                  : MemoryBudget::for_snapshot(planned->memory());
  if (!budget.fits(planned->bytes())) {
    refuse_room(fmt::format("it needs {}, of which {} may be used", gibibytes(planned->bytes()),
                            gibibytes(budget.bytes())));
    return false;
  }
  snapshot_ = std::move(planned);
  ready_ = false;
  return true;
}

void CheckpointSaver::prepare(const ModelConfig& model, ParamStore& store, double seconds) {
  if (!plan(model, store) || ready_ || making_.valid()) return;
  constexpr double slowest = 5e8;  // bytes per second; 1.3e9 was measured for pinned memory
  if (double(snapshot_->bytes()) <= slowest * seconds) {
    try {
      making_ = std::async(std::launch::async, [s = snapshot_.get()] { return allocate(*s); });
      return;
    } catch (const std::system_error&) {}  // no thread: allocated here
  }
  reserve(model, store);
}

bool CheckpointSaver::reserve(const ModelConfig& model, ParamStore& store) {
  if (!plan(model, store)) return false;
  if (ready_) return true;
  const std::string why = making_.valid() ? making_.get() : allocate(*snapshot_);
  ready_ = why.empty();
  if (ready_) return true;
  snapshot_.reset();
  refuse_room(why);
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
  } catch (const std::exception& e) {
    // The snapshot is still there, and later checkpoints refer to this one.
    warn(fmt::format("a checkpoint could not be written and is tried again: {}", e.what()));
    newest_ = write_pending();
  }
  return newest_;
}

}  // namespace hearth::inline train
