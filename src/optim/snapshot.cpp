#include "optim/snapshot.h"

#include <algorithm>
#include <cstring>

#include "sys/memory.h"

namespace hearth::inline optim {
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

// Frozen parameters lie behind all others, so a store without them has the same order.
std::vector<ParamSpec> saved_params(const ParamStore& store, bool adapters) {
  std::vector<ParamSpec> specs(store.specs().begin(), store.specs().end());
  if (adapters) std::erase_if(specs, [](const ParamSpec& p) { return !p.trainable; });
  return specs;
}

}  // namespace

ParamSnapshot::ParamSnapshot(ParamStore& from, bool adapters)
    : source_(from),
      memory_(std::make_unique<HostMemory>(from.backend())),
      params_(*memory_, saved_params(from, adapters), from.dtype()) {
  params_.declare(from.slots());
  for (size_t i = 0; i < from.slots().size(); ++i) parts_.push_back(slot_part(i));
  // The writers prefer masters to weights, which only frozen parameters do not have.
  if (from.has_master()) parts_.push_back(Part::master);
  const auto frozen = [](const ParamSpec& p) { return !p.trainable; };
  if (!from.has_master() || std::ranges::any_of(params_.specs(), frozen))
    parts_.push_back(Part::weight);
}

int64_t ParamSnapshot::bytes() const {
  int64_t sum = 0;
  for (const Part p : parts_) sum += params_.part_bytes(p);
  return sum;
}

void ParamSnapshot::make() {
  constexpr int64_t page = 4096;
  for (const Part p : parts_) {
    std::byte* data = params_.flat(p).data;
    for (int64_t at = 0; at < params_.part_bytes(p); at += page) data[at] = {};
  }
}

// A snapshot without the frozen parameters takes the first part of the weights.
void ParamSnapshot::take() {
  for (const Part p : parts_)
    source_.backend().download(params_.flat(p).data, source_.flat(p).data, params_.part_bytes(p));
}

}  // namespace hearth::inline optim
