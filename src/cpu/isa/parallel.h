// parallel(): Threads::run for kernels compiled per instruction set.
#pragma once

#include <type_traits>

#include "cpu/isa_threads.h"

namespace hearth::HEARTH_ISA {

// body(piece, worker) for piece in [0, pieces); see Threads::run for the guarantees.
template <class Body>
void parallel(Threads& threads, int64_t pieces, Body&& body) {
  run_pieces(
      threads, pieces,
      [](void* state, int64_t piece, int worker) {
        (*static_cast<std::remove_reference_t<Body>*>(state))(piece, worker);
      },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace hearth::HEARTH_ISA
