// AdamW with bf16 moments, rounded to nearest even: 4 instead of 8 bytes per parameter. The update
// is computed in fp32 from the moments before rounding.
//
// bf16 has 8 significant bits, so a moment that changes by less than 1/512 to 1/256 of its value
// rounds back to the old value; a step changes it by 1 - beta of its distance to the gradient. With
// beta2 = 0.999 a second moment could grow but never decay. So a moment whose beta is above 0.98
// stays fp32 (docs/optimizers.md has the figures). The largest beta of any parameter group decides.
#include <algorithm>

#include "optim/optimizer.h"

namespace hearth::inline optim {

std::vector<Optimizer> adamw_bf16(const UpdateSpec& s) {
  constexpr float largest_beta = 0.98f;
  std::vector<Optimizer> all = adamw(s);
  std::vector<SlotSpec>& slots = all[0].slots;
  RuleSpec largest{.beta1 = 0, .beta2 = 0};
  for (int g = 0; g < group_count; ++g) {
    const RuleSpec rule = s.rule_of(UpdateRule::adamw, Group(g));
    largest.beta1 = std::max(largest.beta1, rule.beta1);
    largest.beta2 = std::max(largest.beta2, rule.beta2);
  }
  if (largest.beta1 <= largest_beta) slots[0].dtype = DType::bf16;
  if (largest.beta2 <= largest_beta) slots[1].dtype = DType::bf16;
  return all;
}

}  // namespace hearth::inline optim
