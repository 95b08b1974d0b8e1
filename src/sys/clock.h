// The clock for timing measurements.
#pragma once

#include <chrono>

namespace hearth::inline sys {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

}  // namespace hearth::inline sys
