// The optimizer's part of a checkpoint, state/optimizer.safetensors or its shards: every slot of
// every parameter that has it as "slot.parameter", in the slot's own dtype, and master weights as
// "master.parameter".
#pragma once

#include <filesystem>
#include <vector>

#include "core/params.h"
#include "formats/safetensors.h"

namespace hearth {

// What to write. The tensors read the store when they are written.
std::vector<TensorToWrite> optimizer_tensors(ParamStore&);

// Reads the file in a checkpoint's folder `state`, or its shards, back to the bit. The store's
// slots are declared; state that another optimizer wrote is an error.
void load_optimizer(const std::filesystem::path& state, ParamStore&);

}  // namespace hearth
