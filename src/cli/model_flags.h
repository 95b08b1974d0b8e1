// The model that a preset and the flags that override it describe.
#pragma once

#include <string>

#include "cli/flags.h"
#include "model/config.h"

namespace hearth::inline cli {

// The result is not resolved. With --heads alone, the number of KV heads keeps the preset's ratio
// (an error names the multiple that --heads must be) and the head width is derived from dim again.
// With --dim alone, the widths of MLPs and experts keep the preset's ratio.
ModelConfig model_over_preset(const std::string& name, const FieldFlags<ModelConfig>&);
// The same without a preset.
ModelConfig model_of_flags(const FieldFlags<ModelConfig>&);
// Its name in results: the preset and what overrides it, such as "tiny layers 2 dim 64".
std::string name_over_preset(const std::string& name, const FieldFlags<ModelConfig>&);

// Throws unless files of the model have the layout that --layout names.
void expect_layout(const ModelConfig&);

}  // namespace hearth::inline cli
