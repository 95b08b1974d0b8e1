// Pinned host memory that kernels can access, in buffers of any size. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>

namespace hearth::cuda {

class PinnedMemory {
 public:
  explicit PinnedMemory(int card);
  PinnedMemory(const PinnedMemory&) = delete;

  std::byte* allocate(int64_t bytes, const std::string& what);  // zeroed
  void release(std::byte*, int64_t bytes);

 private:
  std::byte* registered(int64_t bytes);

  bool can_register_;
  std::mutex mutex_;
  std::set<const std::byte*> registered_;  // buffers that were not allocated by CUDA
};

}  // namespace hearth::cuda
