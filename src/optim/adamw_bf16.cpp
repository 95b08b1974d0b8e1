// AdamW with bf16 moments: 4 instead of 8 bytes per parameter. The update is computed in fp32 from
// the moments before they are rounded.
//
// bf16 has 8 significant bits, so to nearest a moment that changes by less than 1/512 to 1/256 of
// its value would round back to the old value, and with beta2 = 0.999 a second moment could grow
// but never decay. Moments are therefore rounded stochastically (core/update_rules.h).
#include "optim/optimizer.h"

namespace hearth::inline optim {

std::vector<Optimizer> adamw_bf16(const UpdateSpec& s) {
  return {elementwise(
      UpdateRule::adamw,
      {{.name = "moment1", .dtype = DType::bf16}, {.name = "moment2", .dtype = DType::bf16}}, s)};
}

}  // namespace hearth::inline optim
