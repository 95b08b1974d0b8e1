// Lion: one momentum in fp32. Every weight moves by the whole learning rate, hence the smaller
// rates that it takes.
#include "optim/optimizer.h"

namespace hearth {

std::vector<Optimizer> lion(const UpdateSpec& s) {
  const RuleSpec rule{.rule = UpdateRule::lion, .beta1 = s.beta1, .beta2 = s.beta2};
  return {elementwise(rule, {{.name = "momentum"}}, s)};
}

}  // namespace hearth
