// A loader's cursor as checkpoints hold it.
#pragma once

#include "data/loader.h"
#include "formats/state_fields.h"

namespace hearth::inline train {

nlohmann::json cursor_to_json(const Cursor&);
// Whether it lies within the files is the loader's to check.
Cursor cursor_of(const StateFields&);

}  // namespace hearth::inline train
