// The model that a preset and the flags over it describe.
#pragma once

#include <string>

#include "cli/flags.h"
#include "model/config.h"

namespace hearth {

// Not resolved yet. With --heads alone the KV heads keep the preset's ratio, or an error says which
// heads would, and the heads share the width of the model again.
ModelConfig model_over_preset(const std::string& name, const FieldFlags<ModelConfig>&);

}  // namespace hearth
