// The driver's management library, opened at run time: temperature, power, utilisation and memory
// of a card. A machine without it has no such figures, and everything else works.
#pragma once

#include <optional>

#include "core/backend.h"

namespace hearth::cuda {

class Nvml {
 public:
  explicit Nvml(int card);  // by CUDA's number
  ~Nvml();
  Nvml(const Nvml&) = delete;
  std::optional<DeviceState> state() const;

 private:
  void* library_ = nullptr;
  void* device_ = nullptr;
};

}  // namespace hearth::cuda
