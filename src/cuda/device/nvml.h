// NVIDIA's management library (NVML), opened at run time: temperature, power, utilisation and
// memory of a GPU. A machine without the library reports no sensors; everything else works.
#pragma once

#include <optional>

#include "core/backend.h"

namespace hearth::cuda {

class Nvml {
 public:
  explicit Nvml(int card);  // CUDA's index of the GPU
  ~Nvml();
  Nvml(const Nvml&) = delete;
  std::optional<DeviceState> state() const;

 private:
  void* library_ = nullptr;
  void* device_ = nullptr;
};

}  // namespace hearth::cuda
