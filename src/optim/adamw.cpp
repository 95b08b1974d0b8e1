// AdamW with two fp32 moments. The slot names are part of the checkpoint format.
#include "optim/optimizer.h"

namespace hearth::inline optim {

std::vector<Optimizer> adamw(const UpdateSpec& s) {
  const RuleSpec rule{.rule = UpdateRule::adamw, .beta1 = s.beta1, .beta2 = s.beta2, .eps = s.eps};
  return {elementwise(rule, {{.name = "moment1"}, {.name = "moment2"}}, s)};
}

}  // namespace hearth::inline optim
