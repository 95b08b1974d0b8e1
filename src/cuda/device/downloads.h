// Downloads into pageable host memory, through pinned memory: the GPU copies into one half of a
// block while the host empties the other. Several threads may download at once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace hearth::cuda {

class Downloads {
 public:
  explicit Downloads(cudaStream_t work);
  ~Downloads();
  Downloads(const Downloads&) = delete;

  // Waits for everything launched so far on the work stream, then for the bytes.
  void run(void* host, const std::byte* device, int64_t bytes);

  // Smaller downloads, and those into pinned memory, are copied directly.
  static constexpr int64_t worth_it = 1 << 20;

 private:
  struct Block;
  std::unique_ptr<Block> take();
  void give(std::unique_ptr<Block>);

  cudaStream_t work_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Block>> free_;  // as many as were ever in use at once
};

}  // namespace hearth::cuda
