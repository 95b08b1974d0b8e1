// PinnedTransfer: copies into pinned memory, either in the compute stream or in a second stream,
// where later launches do not wait for them.
#pragma once

#include "core/backend.h"
#include "cuda/device/owned_stream.h"

namespace hearth::cuda {

class PinnedTransfer final : public Transfer {
 public:
  PinnedTransfer(cudaStream_t work, cudaStream_t copies, int64_t bytes);
  ~PinnedTransfer() override;
  void begin(const std::byte* device, int64_t bytes) override;
  const std::byte* wait() override;

 private:
  cudaStream_t work_, copies_;
  Mark made_, arrived_;
  void* data_ = nullptr;
};

}  // namespace hearth::cuda
