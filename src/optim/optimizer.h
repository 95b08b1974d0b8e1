// What an optimizer is: the parameters it takes, the state it declares beside them, and how it
// records its update. ParamStore allocates what is declared, checkpoints store it by its names, and
// the memory plan counts it.
#pragma once

#include <functional>
#include <vector>

#include "core/params.h"
#include "core/tape.h"
#include "optim/optimizers.h"

namespace hearth {

struct UpdateSpec {
  OptimizerKind optimizer = OptimizerKind::adamw;
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  float decay = 0.1f;
  bool decay_all = false;  // tables and vectors too

  float decay_of(Group g) const {
    return decay_all || g == Group::matrix || g == Group::head ? decay : 0;
  }
};

// What every optimizer reads: gradients come from the store.
struct UpdateVars {
  Var gate;     // UpdateState: whether to skip the step, what to multiply gradients by
  Var scalars;  // Scalars
};

struct Optimizer {
  Groups groups = Groups::all();
  std::vector<SlotSpec> slots;
  std::function<void(Tape&, const ParamStore&, const UpdateVars&)> record;
};

// The optimizers of a run, which together take every group once.
std::vector<Optimizer> make_optimizers(const UpdateSpec&);

// The slots of all of them, in the order in which a store has them and a checkpoint stores them.
std::vector<SlotSpec> slots_of(const UpdateSpec&);

// An optimizer that changes each weight by its own gradient and state alone, one pass over each
// group. Its slots are those of the rule, in order; `rule.decay` is set group by group.
Optimizer elementwise(const RuleSpec& rule, std::vector<SlotSpec> slots, const UpdateSpec&,
                      Groups = Groups::all());

}  // namespace hearth
