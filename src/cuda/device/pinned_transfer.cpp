#include "cuda/device/pinned_transfer.h"

namespace hearth::cuda {

PinnedTransfer::PinnedTransfer(cudaStream_t work, cudaStream_t copies, int64_t bytes)
    : work_(work), copies_(copies) {
  check(cudaMallocHost(&data_, size_t(bytes)), "allocating pinned memory");
}

PinnedTransfer::~PinnedTransfer() {
  cudaStreamSynchronize(copies_);
  cudaFreeHost(data_);
}

void PinnedTransfer::begin(const std::byte* device, int64_t bytes) {
  if (copies_ != work_) {
    made_.set(work_);
    made_.hold(copies_);
  }
  check(cudaMemcpyAsync(data_, device, size_t(bytes), cudaMemcpyDefault, copies_), "a download");
  arrived_.set(copies_);
}

const std::byte* PinnedTransfer::wait() {
  arrived_.wait();
  return static_cast<const std::byte*>(data_);
}

}  // namespace hearth::cuda
