// The optimizer's part of a checkpoint, state/optimizer.safetensors or its shards: each slot of
// each parameter as "slot.parameter" in the slot's dtype, and master weights as "master.parameter".
#pragma once

#include <filesystem>
#include <vector>

#include "core/params.h"
#include "formats/safetensors.h"

namespace hearth::inline optim {

// The tensors to write. They read the store when they are written.
std::vector<TensorToWrite> optimizer_tensors(ParamStore&);

// Reads the file (or its shards) in a checkpoint's folder `state` bit for bit. The store's slots
// must be declared; state of another optimizer is an error.
void load_optimizer(const std::filesystem::path& state, ParamStore&);

}  // namespace hearth::inline optim
