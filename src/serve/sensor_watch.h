// SensorWatch: the last reading of a device's sensors. Reading them takes milliseconds, so a thread
// of its own does it, once a second, and /metrics answers at once.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "core/backend.h"

namespace hearth::inline serve {

class SensorWatch {
 public:
  using Read = std::function<std::optional<DeviceState>()>;
  // Reads once, then every `period`. A device without sensors (or no `read`) is not read again and
  // needs no thread.
  explicit SensorWatch(Read read, std::chrono::milliseconds period = std::chrono::seconds(1));
  std::optional<DeviceState> last() const;

 private:
  void run(std::stop_token);

  const Read read_;
  const std::chrono::milliseconds period_;
  mutable std::mutex mutex_;
  std::condition_variable_any never_;  // only its timeout and the stop token end a wait
  std::optional<DeviceState> last_;
  std::jthread thread_;  // last, because it uses other members
};

}  // namespace hearth::inline serve
