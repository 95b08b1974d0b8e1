// Lion with one fp32 momentum. Every weight moves by the full learning rate, so Lion needs a
// smaller learning rate.
#include "optim/optimizer.h"

namespace hearth::inline optim {

std::vector<Optimizer> lion(const UpdateSpec& s) {
  const RuleSpec rule{.rule = UpdateRule::lion, .beta1 = s.beta1, .beta2 = s.beta2};
  return {elementwise(rule, {{.name = "momentum"}}, s)};
}

}  // namespace hearth::inline optim
