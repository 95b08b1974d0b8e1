// The update program: gradient norm, clipping or skipping, and AdamW over the flat buffers, with no
// word from the host in between.
#pragma once

#include "core/params.h"
#include "core/tape.h"

namespace hearth {

struct UpdateSpec {
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  float decay = 0.1f;
  bool decay_all = false;  // tables and vectors too
};

// Reads the gradients, "scalars" and the loss `train.loss`; keeps UpdateState in "update".
void record_update(Tape&, const ParamStore&, Var loss, const UpdateSpec&);

}  // namespace hearth
