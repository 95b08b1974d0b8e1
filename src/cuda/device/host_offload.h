// Arrays of the host's memory worked on by a kernel of the card: piece by piece they come into
// device memory, are updated there and go back, in both directions at once and under the kernel's
// work.
#pragma once

#include <functional>
#include <span>

#include "cuda/device/stream.h"

namespace hearth::cuda {

// Whether this pointer is pinned memory of the host.
bool is_offloaded(const void*);

class OffloadLanes {
 public:
  OffloadLanes();
  ~OffloadLanes();
  OffloadLanes(const OffloadLanes&) = delete;

  // Calls work(begin, count, near) for each piece of [0, n): near[k] is where the elements of
  // offloaded[k] from `begin` on now lie. An element has at most 4 bytes. Everything is queued
  // behind `s`, and what follows on `s` waits for it; may be captured.
  using Work = std::function<void(int64_t begin, int64_t count, std::span<std::byte* const> near)>;
  void stream(CudaStream& s, std::span<const Tensor> offloaded, int64_t n, const Work& work);

 private:
  static constexpr int slots = 3;
  static constexpr int64_t piece = 4 << 20;  // elements: enough for the bus's full speed
  cudaStream_t in_ = nullptr, out_ = nullptr;
  cudaEvent_t begin_ = nullptr, here_[slots] = {}, done_[slots] = {}, stored_[slots] = {};
};

}  // namespace hearth::cuda
