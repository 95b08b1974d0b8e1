// An optimizer: the parameter groups it updates, the state it declares, and how it records its
// update. ParamStore allocates the declared state, checkpoints store it by name, and the memory
// plan counts it.
#pragma once

#include <functional>
#include <vector>

#include "core/params.h"
#include "core/tape.h"
#include "optim/optimizers.h"

namespace hearth::inline optim {

struct UpdateSpec {
  OptimizerKind optimizer = OptimizerKind::adamw;
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  float decay = 0.1f;
  bool decay_all = false;  // also decay embeddings and vectors

  float decay_of(Group g) const {
    return decay_all || g == Group::matrix || g == Group::head ? decay : 0;
  }
};

// The inputs of every optimizer; gradients come from the store.
struct UpdateVars {
  Var gate;     // UpdateState: whether to skip the step, gradient scale
  Var scalars;  // Scalars
};

struct Optimizer {
  Groups groups = Groups::all();
  std::vector<SlotSpec> slots;
  std::function<void(Tape&, const ParamStore&, const UpdateVars&)> record;
};

// The optimizers of a run, which together cover every group exactly once.
std::vector<Optimizer> make_optimizers(const UpdateSpec&);

// Their slots, in the order used by the store and by checkpoints.
std::vector<SlotSpec> slots_of(const UpdateSpec&);

// An optimizer that updates each weight from its own gradient and state only, in one pass over each
// group. Its slots are those of the rule, in order; `rule.decay` is set per group.
Optimizer elementwise(const RuleSpec& rule, std::vector<SlotSpec> slots, const UpdateSpec&,
                      Groups = Groups::all());

}  // namespace hearth::inline optim
