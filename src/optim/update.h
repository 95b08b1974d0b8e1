// The update program: gradient norm, clipping or skipping, and the optimizer's update of the flat
// buffers, without host synchronisation in between.
#pragma once

#include "optim/optimizer.h"

namespace hearth::inline optim {

// Declares the optimizer's state in the store and allocates every buffer that training needs,
// before a checkpoint is loaded into them and so that a lack of memory shows before the first step.
void make_training_buffers(ParamStore&, const UpdateSpec&);

// Orders parameters for UpdateSpec::modules_apart: modules of multi-token prediction before all
// other matrices and after all other vectors. The others then lie in one range, with the sum of
// squares, to the bit, that they have without modules.
void lay_modules_apart(std::vector<ParamSpec>&);

// Reads the gradients, "scalars" and `loss`, and keeps UpdateState in "update". Declares the
// optimizer's state in the store if that has not been done yet. With a tied head it also changes
// the gradients of both matrices.
void record_update(Tape&, ParamStore&, Var loss, const UpdateSpec&);

}  // namespace hearth::inline optim
