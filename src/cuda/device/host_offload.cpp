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

void OffloadLanes::stream(CudaStream& s, std::span<const Array> arrays, int64_t n,
                          const Work& work) {
  const int64_t length = std::min(n, piece);
  int64_t chunk = 0;  // bytes of a chunk of all arrays
  std::vector<int64_t> place;
  for (const Array& a : arrays) {
    place.push_back(chunk);
    chunk += round_up(ceil_div(length, a.per) * size_of(a.tensor.dtype), 256);
  }
  auto* room = static_cast<std::byte*>(s.scratch(slots * chunk));
  std::vector<std::byte*> near(arrays.size());
  // The bytes of an array that belong to `count` elements from `begin` on.
  struct Bytes {
    std::byte* data;
    size_t size;
  };
  const auto bytes_of = [](const Array& a, int64_t begin, int64_t count) {
    const int64_t size = size_of(a.tensor.dtype), first = begin / a.per;
    return Bytes{a.tensor.data + first * size,
                 size_t((ceil_div(begin + count, a.per) - first) * size)};
  };
  mark(begin_, s.handle), wait(in_, begin_), wait(out_, begin_);
  int64_t number = 0;
  for (int64_t begin = 0; begin < n; begin += length, ++number) {
    const int64_t count = std::min(length, n - begin);
    const auto slot = size_t(number % slots);
    if (number >= slots) wait(in_, stored_[slot]);
    for (size_t k = 0; k < arrays.size(); ++k) {
      const Bytes far = bytes_of(arrays[k], begin, count);
      near[k] = room + int64_t(slot) * chunk + place[k];
      check(cudaMemcpyAsync(near[k], far.data, far.size, cudaMemcpyHostToDevice, in_),
            "bringing state from the host");
    }
    mark(here_[slot], in_), wait(s.handle, here_[slot]);
    work(begin, count, near);
    mark(done_[slot], s.handle), wait(out_, done_[slot]);
    for (size_t k = 0; k < arrays.size(); ++k) {
      const Bytes far = bytes_of(arrays[k], begin, count);
      check(cudaMemcpyAsync(far.data, near[k], far.size, cudaMemcpyDeviceToHost, out_),
            "storing state on the host");
    }
    mark(stored_[slot], out_);
  }
  wait(s.handle, stored_[size_t((number - 1) % slots)]);  // out_ is in order: the last suffices
}

}  // namespace hearth::cuda
