// Graph: a CUDA graph captured from what a function launches on a stream.
#pragma once

#include <functional>

#include "core/backend.h"
#include "cuda/device/stream.h"

namespace hearth::cuda {

class Graph final : public Replay {
 public:
  Graph(cudaStream_t, const std::function<void()>& launch);
  ~Graph() override;
  void run() override;

 private:
  cudaStream_t stream_;
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace hearth::cuda
