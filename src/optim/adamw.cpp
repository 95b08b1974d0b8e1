// AdamW with two fp32 moments. The slot names are part of the checkpoint format.
#include "optim/optimizer.h"

namespace hearth::inline optim {

std::vector<Optimizer> adamw(const UpdateSpec& s) {
  return {elementwise(UpdateRule::adamw, {{.name = "moment1"}, {.name = "moment2"}}, s)};
}

}  // namespace hearth::inline optim
