// Runs a kernel over arrays in host memory: chunk by chunk they are copied to device memory,
// updated and copied back. Both directions of copies overlap each other and the kernel.
#pragma once

#include <functional>
#include <span>

#include "cuda/device/stream.h"

namespace hearth::cuda {

// Whether this pointer is pinned host memory.
bool is_offloaded(const void*);

class OffloadLanes {
 public:
  OffloadLanes();
  ~OffloadLanes();
  OffloadLanes(const OffloadLanes&) = delete;

  // An array in host memory, with one entry per `per` elements of the range; `per` divides 256.
  struct Array {
    Tensor tensor;
    int64_t per = 1;
  };
  // Calls work(begin, count, near) for each chunk of [0, n); begin is a multiple of 256. near[k] is
  // the device address of the entries of arrays[k] from element `begin` on, aligned to 256 bytes.
  // Everything is ordered after earlier work on `s` and before later work on it; can be captured.
  using Work = std::function<void(int64_t begin, int64_t count, std::span<std::byte* const> near)>;
  void stream(CudaStream& s, std::span<const Array> arrays, int64_t n, const Work& work);

 private:
  static constexpr int slots = 3;
  // Elements: enough for the full bandwidth of the bus, and whole blocks of 8-bit codes.
  static constexpr int64_t piece = 4 << 20;
  cudaStream_t in_ = nullptr, out_ = nullptr;
  cudaEvent_t begin_ = nullptr, here_[slots] = {}, done_[slots] = {}, stored_[slots] = {};
};

}  // namespace hearth::cuda
