// The reference backend: every kernel as its formula, in double precision, on one thread. The other
// backends are tested against it, so it is written for clarity, not speed.
#pragma once

#include <memory>

#include "core/backend.h"

namespace hearth::inline cpu {

// Accepts any float dtype for each tensor; ignores the stream and all scratch.
const Kernels& reference_kernels();

std::unique_ptr<Backend> make_reference_backend();

}  // namespace hearth::inline cpu
