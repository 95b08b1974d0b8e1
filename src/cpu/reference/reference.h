// The reference backend: every kernel as its formula, in double, on one thread. It is the oracle
// the other backends are tested against, so it is written to be read and not to be fast.
#pragma once

#include <memory>

#include "core/backend.h"

namespace hearth::inline cpu {

// Takes any float dtype for each tensor; ignores the stream and all scratch.
const Kernels& reference_kernels();

std::unique_ptr<Backend> make_reference_backend();

}  // namespace hearth::inline cpu
