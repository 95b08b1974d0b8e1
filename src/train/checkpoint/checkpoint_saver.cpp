#include "train/checkpoint/checkpoint_saver.h"

#include <algorithm>
#include <cstring>
#include <system_error>

#include "core/memory_budget.h"
#include "cpu/backend.h"
#include "sys/error.h"
#include "sys/terminal.h"

namespace hearth::inline train {
namespace fs = std::filesystem;

namespace {

// The host's memory as the device can best copy to it (pinned, on a card), in the shape of a
// backend: a ParamStore on it is a snapshot that the writers read like any other store. Nothing is
// computed on it.
class HostMemory final : public Backend {
 public:
  explicit HostMemory(Backend& device) : device_(device) {}

  const Kernels& kernels() const override { return device_.kernels(); }
  Stream& stream() override { return device_.stream(); }
  std::string describe() const override { return "memory of the host"; }
  std::byte* allocate(int64_t bytes, const std::string& what) override {
    return device_.allocate_offloaded(bytes, what);
  }
  void release(std::byte* p, int64_t bytes) override { device_.release_offloaded(p, bytes); }
  void upload(std::byte* to, const void* from, int64_t bytes) override {
    std::memcpy(to, from, size_t(bytes));
  }
  void download(void* to, const std::byte* from, int64_t bytes) override {
    std::memcpy(to, from, size_t(bytes));
  }
  void synchronize() override {}
  int64_t free_bytes() const override { return available_memory(); }

 private:
  Backend& device_;
};

// What a checkpoint reads of a store. Frozen parameters lie behind all others and are not saved
// with adapters, so a store without them has the same order.
struct Saved {
  std::vector<ParamSpec> specs;
  std::vector<Part> parts;
};

Saved saved_of(const ParamStore& store, bool adapters) {
  Saved s{{store.specs().begin(), store.specs().end()}, {}};
  for (size_t i = 0; i < store.slots().size(); ++i) s.parts.push_back(slot_part(i));
  if (adapters) std::erase_if(s.specs, [](const ParamSpec& p) { return !p.trainable; });
  // The writers prefer masters to weights, which only frozen parameters do not have.
  const auto frozen = [](const ParamSpec& p) { return !p.trainable; };
  if (store.has_master()) s.parts.push_back(Part::master);
  if (!store.has_master() || std::ranges::any_of(s.specs, frozen)) s.parts.push_back(Part::weight);
  return s;
}

std::string gibibytes(int64_t bytes) {
  return fmt::format("{:.1f} GiB", double(bytes) / (1 << 30));
}

}  // namespace

struct CheckpointSaver::Snapshot {
  Snapshot(ParamStore& from, Saved saved)
      : source(&from),
        memory(std::make_unique<HostMemory>(from.backend())),
        parts(std::move(saved.parts)),
        params(*memory, std::move(saved.specs), from.dtype()) {
    params.declare(from.slots());
  }

  int64_t bytes() const {
    int64_t sum = 0;
    for (const Part p : parts) sum += params.part_bytes(p);
    return sum;
  }
  // Every page is touched, so that the first copy takes no longer than later ones.
  void make() {
    constexpr int64_t page = 4096;
    for (const Part p : parts) {
      std::byte* data = params.flat(p).data;
      for (int64_t at = 0; at < params.part_bytes(p); at += page) data[at] = {};
    }
  }
  // A snapshot without the frozen parameters takes the first part of the weights.
  void take() {
    for (const Part p : parts)
      source->backend().download(params.flat(p).data, source->flat(p).data, params.part_bytes(p));
  }

  ParamStore* source;
  std::unique_ptr<Backend> memory;  // a HostMemory
  std::vector<Part> parts;
  ParamStore params;
};

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
  if (snapshot_ && snapshot_->source == &store) return true;
  if (no_room_) return false;
  finish();  // it may be reading the snapshot of another store
  snapshot_.reset();
  auto made = std::make_unique<Snapshot>(store, saved_of(store, bool(model.lora)));
  const MemoryBudget budget = spec_.snapshot_limit >= 0 ? MemoryBudget(spec_.snapshot_limit)
                                                        : MemoryBudget::for_snapshot(*made->memory);
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
  return save_model_checkpoint(run_, pending_, snapshot_->params);
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
