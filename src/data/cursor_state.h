// A loader's cursor in the form that checkpoints store.
#pragma once

#include "data/loader.h"
#include "formats/state_fields.h"

namespace hearth::inline data {

nlohmann::json cursor_to_json(const Cursor&);
// The loader checks whether the cursor lies within the files.
Cursor cursor_of(const StateFields&);

}  // namespace hearth::inline data
