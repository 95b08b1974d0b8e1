// FusedSteps: the decode programs of a backend that run as one persistent kernel each, and the
// memory through which its blocks exchange activations.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "core/backend.h"
#include "cuda/device/stream.h"

namespace hearth::cuda::persistent {

class FusedSteps {
 public:
  explicit FusedSteps(CudaStream& s) : stream_(s) {}
  ~FusedSteps();
  FusedSteps(const FusedSteps&) = delete;

  // As Backend::fuse(). A decode step that cannot be fused is reported once for each reason. The
  // steps must not outlive this.
  std::unique_ptr<Replay> fuse(const Backend::LaunchOn&);

 private:
  friend class FusedStep;
  void hold(int64_t packets);
  uint32_t take_numbers(int phases);
  std::unique_ptr<Replay> refuse(const std::string& why);

  CudaStream& stream_;
  // Steps of one stream follow each other, so all of them use the same wires.
  uint64_t* wires_ = nullptr;
  int64_t bytes_ = 0;
  uint32_t next_ = 1;  // number of the next phase to run
  std::set<std::string> told_;
};

}  // namespace hearth::cuda::persistent
