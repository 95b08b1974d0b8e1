#include "serve/sensor_watch.h"

namespace hearth::inline serve {

SensorWatch::SensorWatch(Read read, std::chrono::milliseconds period)
    : read_(std::move(read)), period_(period), last_(read_ ? read_() : std::nullopt) {
  if (last_) thread_ = std::jthread([this](std::stop_token stop) { run(stop); });
}

std::optional<DeviceState> SensorWatch::last() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

void SensorWatch::run(std::stop_token stop) {
  for (std::unique_lock lock(mutex_); !stop.stop_requested();) {
    never_.wait_for(lock, stop, period_, [] { return false; });
    if (stop.stop_requested()) return;
    lock.unlock();
    const std::optional<DeviceState> now = read_();
    lock.lock();
    last_ = now;
  }
}

}  // namespace hearth::inline serve
