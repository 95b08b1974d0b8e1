#include "cuda/device/staging.h"

#include <algorithm>
#include <cstring>

namespace hearth::cuda {

Staging::Staging(cudaStream_t s, int64_t bytes) : stream_(s), half_(bytes / 2) {
  check(cudaMallocHost(&data_, size_t(2 * half_)), "allocating pinned memory");
}

Staging::~Staging() { cudaFreeHost(data_); }

void Staging::upload(void* device, const void* host, int64_t bytes) {
  while (bytes > 0) {
    const int64_t n = std::min(bytes, half_);
    if (at_ + n > half_) {
      filled_[turn_].set(stream_);
      turn_ = 1 - turn_, at_ = 0;
      filled_[turn_].wait();
    }
    char* const place = static_cast<char*>(data_) + int64_t(turn_) * half_ + at_;
    std::memcpy(place, host, size_t(n));
    check(cudaMemcpyAsync(device, place, size_t(n), cudaMemcpyDefault, stream_), "an upload");
    at_ += (n + 255) / 256 * 256;
    bytes -= n;
    host = static_cast<const char*>(host) + n;
    device = static_cast<char*>(device) + n;
  }
}

}  // namespace hearth::cuda
