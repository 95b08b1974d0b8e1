// The CPU as a backend: memory pages, a thread pool, and the kernels of one instruction set.
#pragma once

#include <memory>
#include <optional>

#include "core/backend.h"
#include "cpu/features.h"

namespace hearth::inline cpu {

// threads 0: one per usable core. Without `isa`: the best one that this machine can run.
std::unique_ptr<Backend> make_cpu_backend(int threads, std::optional<Isa> isa = {});

// The table of kernels compiled for one instruction set.
const Kernels& cpu_kernels(Isa);

}  // namespace hearth::inline cpu
