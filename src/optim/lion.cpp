// Lion with one fp32 momentum. Every weight moves by the full learning rate, so Lion needs a
// smaller learning rate.
#include "optim/optimizer.h"

namespace hearth::inline optim {

std::vector<Optimizer> lion(const UpdateSpec& s) {
  return {elementwise(UpdateRule::lion, {{.name = "momentum"}}, s)};
}

}  // namespace hearth::inline optim
