// A head that is tied for a part of a run. The model is one with an untied head, so its parameters,
// checkpoints and memory do not change. While the tie lasts, the head and the token table are equal
// to the bit, as are their master weights and optimizer state.
//
// The head is the matrix that is trained: its gradient is the sum of both gradients, it moves by
// the settings of its group, and the table is a copy of it.
#pragma once

#include "core/exec.h"

namespace hearth::inline optim {

enum class TiedSide : uint8_t { head, table };

// Before the gradient norm: adds the table's gradient to the head's and makes the table's 0, so
// that the norm counts the sum once.
void record_tied_gradient(Tape&, const ParamStore&);

// Copies weights, master weights and optimizer state of one side to the other.
void record_tied_copy(Tape&, const ParamStore&, TiedSide from);

// The same, now. The optimizer's state must have been declared.
void tie_now(Memory&, TiedSide from);

}  // namespace hearth::inline optim
