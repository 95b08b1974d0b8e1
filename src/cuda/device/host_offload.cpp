#include "cuda/device/host_offload.h"

#include <algorithm>
#include <vector>

namespace hearth::cuda {
namespace {

void make(cudaEvent_t& e) {
  check(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), "making an event");
}

void mark(cudaEvent_t e, cudaStream_t s) { check(cudaEventRecord(e, s), "marking a stream"); }

void wait(cudaStream_t s, cudaEvent_t e) { check(cudaStreamWaitEvent(s, e, 0), "waiting"); }

}  // namespace

bool is_offloaded(const void* p) {
  cudaPointerAttributes a{};
  if (!p) return false;
  check(cudaPointerGetAttributes(&a, p), "asking where memory lies");
  return a.type == cudaMemoryTypeHost;
}

OffloadLanes::OffloadLanes() {
  check(cudaStreamCreateWithFlags(&in_, cudaStreamNonBlocking), "making a stream");
  check(cudaStreamCreateWithFlags(&out_, cudaStreamNonBlocking), "making a stream");
  make(begin_);
  for (int i = 0; i < slots; ++i) make(here_[i]), make(done_[i]), make(stored_[i]);
}

OffloadLanes::~OffloadLanes() {
  for (int i = 0; i < slots; ++i)
    cudaEventDestroy(here_[i]), cudaEventDestroy(done_[i]), cudaEventDestroy(stored_[i]);
  cudaEventDestroy(begin_);
  cudaStreamDestroy(in_), cudaStreamDestroy(out_);
}

void OffloadLanes::stream(CudaStream& s, std::span<const Tensor> offloaded, int64_t n,
                          const Work& work) {
  constexpr int64_t widest = 4;  // bytes of an element
  const int64_t length = std::min(n, piece), arrays = int64_t(offloaded.size());
  auto* room = static_cast<std::byte*>(s.scratch(slots * arrays * length * widest));
  std::vector<std::byte*> near(offloaded.size());
  mark(begin_, s.handle), wait(in_, begin_), wait(out_, begin_);
  int64_t number = 0;
  for (int64_t begin = 0; begin < n; begin += length, ++number) {
    const int64_t count = std::min(length, n - begin);
    const auto slot = size_t(number % slots);
    if (number >= slots) wait(in_, stored_[slot]);
    for (size_t k = 0; k < offloaded.size(); ++k) {
      const int64_t size = size_of(offloaded[k].dtype);
      near[k] = room + (int64_t(slot) * arrays + int64_t(k)) * length * widest;
      check(cudaMemcpyAsync(near[k], offloaded[k].data + begin * size, size_t(count * size),
                            cudaMemcpyHostToDevice, in_),
            "bringing state from the host");
    }
    mark(here_[slot], in_), wait(s.handle, here_[slot]);
    work(begin, count, near);
    mark(done_[slot], s.handle), wait(out_, done_[slot]);
    for (size_t k = 0; k < offloaded.size(); ++k) {
      const int64_t size = size_of(offloaded[k].dtype);
      check(cudaMemcpyAsync(offloaded[k].data + begin * size, near[k], size_t(count * size),
                            cudaMemcpyDeviceToHost, out_),
            "storing state on the host");
    }
    mark(stored_[slot], out_);
  }
  wait(s.handle, stored_[size_t((number - 1) % slots)]);  // out_ is in order: the last suffices
}

}  // namespace hearth::cuda
