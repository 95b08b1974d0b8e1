// The tensors of an opened model file: checked against its config, and loaded into parameters.
#pragma once

#include <functional>
#include <vector>

#include "core/params.h"
#include "model/files/model_file.h"

namespace hearth::inline model {

// The tensors that the config asks for. A missing, unexpected or misshapen one is an error that
// names it. If the file has none of the modules of multi-token prediction, the config loses them:
// transformers leaves them out of the folders that it writes, but keeps their number.
std::vector<FileTensor> checked_tensors(ModelFile&, ModelConfig&);
// Fills every parameter, except those of adapters, from those tensors. `check` is called before
// each.
void load_params(ParamStore&, const ModelFile&, const std::vector<FileTensor>&,
                 const std::function<void()>& check);

}  // namespace hearth::inline model
