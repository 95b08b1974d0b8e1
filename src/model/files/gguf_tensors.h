// The tensors of a GGUF model and those of a layout: names, tensors of all experts of a layer, and
// the keys and values of latent attention. Internal to gguf_*.cpp.
#pragma once

#include <vector>

#include "core/params.h"
#include "formats/gguf/gguf.h"
#include "formats/stored_tensor.h"
#include "model/files/hf_names.h"

namespace hearth::inline model {

// Throws unless every layer with experts has a router and three tensors for the experts that the
// keys count. This bounds the list of the layout's tensors by the size of the file.
void check_expert_tensors(const GgufTable&, const ModelConfig&);

// The tensors of the file under the names of its layout. Values that are quantised or stored in
// another order are unpacked when they are read.
StoredTensors hub_tensors(const GgufTable&, const ModelConfig&, HfType);

// The tensors of a model to be written, as F32; their values are read from the store when written.
std::vector<GgufTensorToWrite> gguf_tensors(const ModelConfig&, HfType, ParamStore&);

FileLayout gguf_layout(HfType);

}  // namespace hearth::inline model
