// AdamW: two moments in fp32. The slots keep the names under which checkpoints have always stored
// them.
#include "optim/optimizer.h"

namespace hearth {

std::vector<Optimizer> adamw(const UpdateSpec& s) {
  const RuleSpec rule{.rule = UpdateRule::adamw, .beta1 = s.beta1, .beta2 = s.beta2, .eps = s.eps};
  return {elementwise(rule, {{.name = "moment1"}, {.name = "moment2"}}, s)};
}

}  // namespace hearth
