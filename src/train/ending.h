// Ending: why a run ended.
#pragma once

#include <cstdint>

#include "formats/enum_names.h"

namespace hearth::inline train {

// The run made all its steps, reached its target, or was stopped by a signal or --stop-after-step.
enum class Ending : uint8_t { steps, target, stopped };
HEARTH_ENUM_NAMES(Ending, {"steps", "target", "stopped"})

}  // namespace hearth::inline train
