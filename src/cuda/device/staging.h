// Staging: pinned memory that uploads pass through, so that the host need not wait for them. The
// host fills one half while the GPU reads the other, and waits only before it overwrites unread
// data.
#pragma once

#include "cuda/device/owned_stream.h"

namespace hearth::cuda {

class Staging {
 public:
  Staging(cudaStream_t, int64_t bytes);
  ~Staging();
  Staging(const Staging&) = delete;

  void upload(void* device, const void* host, int64_t bytes);

 private:
  cudaStream_t stream_;
  int64_t half_;
  void* data_ = nullptr;
  int turn_ = 0;    // the half being filled
  int64_t at_ = 0;  // bytes of that half used so far
  Mark filled_[2];  // the last copy out of each half
};

}  // namespace hearth::cuda
