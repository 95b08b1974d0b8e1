// Threads for code compiled per instruction set. std::function instantiates weak symbols of std,
// which such code must not emit (cmake/check_isa_symbols.sh), so the body is passed as a plain
// function pointer.
#pragma once

#include <cstdint>

namespace hearth::inline sys {
class Threads;
}

namespace hearth::inline cpu {

// Threads::run with body(state, piece, worker).
void run_pieces(Threads&, int64_t pieces, void (*body)(void* state, int64_t piece, int worker),
                void* state);
int thread_count(const Threads&);

}  // namespace hearth::inline cpu
