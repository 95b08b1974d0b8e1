// Ending: why a run ended.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace hearth::inline train {

// The run made all its steps, reached its target, or was stopped by a signal or --stop-after-step.
enum class Ending : uint8_t { steps, target, stopped };
inline std::span<const std::string_view> names_of(Ending) {
  static constexpr auto names = std::to_array<std::string_view>({"steps", "target", "stopped"});
  return names;
}

}  // namespace hearth::inline train
