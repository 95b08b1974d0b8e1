#include "model/further_losses.h"

#include <fmt/format.h>

#include "model/decoder.h"
#include "sys/error.h"

namespace hearth::inline model {

void record_further_losses(Tape& t, const ModelConfig& model, Var x, Var positions, Var targets,
                           float weight, HeadSpec head) {
  constexpr int64_t furthest = 2;
  if (weight == 0 || !head.grad) return;
  if (model.mtp)
    fail_usage(
        "--further-loss",
        "the modules of multi-token prediction (--mtp) predict further tokens already: leave "
        "one of both out");
  if (!positions)
    fail_usage("--further-loss", "is for pretraining, which learns every token: leave it out");
  head.scale = model.logit_scale, head.softcap = model.logit_softcap;
  float own = 1;
  for (int64_t k = 1; k <= furthest; ++k) {
    own *= weight;
    head.term = {
        .name = fmt::format("further_{}", k), .weight = own, .validate = false, .ahead = k};
    head_loss(t, x, head_weight(t, model), further_tokens(t, targets, positions, k), head);
  }
}

}  // namespace hearth::inline model
