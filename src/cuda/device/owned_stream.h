// OwnedStream: a CUDA stream with its lifetime. Mark: a point in a stream that other streams, or
// the host, wait for.
#pragma once

#include "cuda/device/stream.h"

namespace hearth::cuda {

// Declared before everything that uses the stream, so that it is destroyed last.
struct OwnedStream {
  OwnedStream() {
    check(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), "making a stream");
  }
  ~OwnedStream() { cudaStreamDestroy(handle); }
  OwnedStream(const OwnedStream&) = delete;
  cudaStream_t handle = nullptr;
};

class Mark {
 public:
  Mark() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "making an event"); }
  ~Mark() { cudaEventDestroy(event_); }
  Mark(const Mark&) = delete;
  void set(cudaStream_t s) { check(cudaEventRecord(event_, s), "marking a stream"); }
  void hold(cudaStream_t s) { check(cudaStreamWaitEvent(s, event_), "holding a stream"); }
  void wait() { check(cudaEventSynchronize(event_), "the work on the card"); }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace hearth::cuda
