#include "cuda/device/nvml.h"

#include <algorithm>
#include <iterator>

#include <cuda_runtime_api.h>
#include <dlfcn.h>

namespace hearth::cuda {
namespace {

// As nvml.h declares them; the header is not part of every toolkit package.
struct Utilisation {
  unsigned gpu, memory;
};
struct MemoryInfo {
  unsigned long long total, free, used;
};
constexpr int temperature_gpu = 0;

template <class... Args>
bool call(void* library, const char* name, Args... args) {
  const auto f = reinterpret_cast<int (*)(Args...)>(dlsym(library, name));
  return f && f(args...) == 0;
}

}  // namespace

Nvml::Nvml(int card) {
  char bus[32] = {};
  if (cudaDeviceGetPCIBusId(bus, sizeof bus, card) != cudaSuccess) return;
  library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library_) return;
  const bool found =
      call(library_, "nvmlInit_v2") &&
      call(library_, "nvmlDeviceGetHandleByPciBusId_v2", static_cast<const char*>(bus), &device_);
  if (!found) device_ = nullptr;
}

Nvml::~Nvml() {
  if (!library_) return;
  call(library_, "nvmlShutdown");
  dlclose(library_);
}

std::optional<DeviceState> Nvml::state() const {
  if (!device_) return {};
  unsigned celsius = 0, milliwatts = 0;
  Utilisation use{};
  MemoryInfo memory{};
  // A missing sensor (power on a laptop, a MIG slice) reads 0.
  const bool any[] = {
      call(library_, "nvmlDeviceGetTemperature", device_, temperature_gpu, &celsius),
      call(library_, "nvmlDeviceGetPowerUsage", device_, &milliwatts),
      call(library_, "nvmlDeviceGetUtilizationRates", device_, &use),
      call(library_, "nvmlDeviceGetMemoryInfo", device_, &memory)};
  if (std::find(std::begin(any), std::end(any), true) == std::end(any)) return {};
  return DeviceState{double(celsius), milliwatts / 1e3, use.gpu / 100.0, int64_t(memory.used)};
}

}  // namespace hearth::cuda
