// Which instruction sets the CPU kernels were built for, which of them this machine can run, and
// the one in use. HEARTH_ISA=name in the environment overrides the choice; naming a set that cannot
// run is an error.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "cpu/isa_list.h"

namespace hearth::inline cpu {

// Only the sets that were built are enumerators; later ones are better.
enum class Isa : uint8_t {
#define HEARTH_ENUMERATOR(isa) isa,
  HEARTH_FOR_EACH_ISA(HEARTH_ENUMERATOR)
#undef HEARTH_ENUMERATOR
};

std::string_view name(Isa);

// Those built and supported by this CPU and operating system, worst to best; never empty.
std::vector<Isa> usable_isas();

// The best usable one, or the one that HEARTH_ISA names.
Isa best_isa();

}  // namespace hearth::inline cpu
