#include "train/task.h"

namespace hearth::inline train {

StepContext step_context(const RunConfig& config, int64_t total, const RunState& state,
                         StepGuard& guard) {
  StepContext c{.step = state.step, .data_step = state.data_step, .guard = guard};
  c.lr = config.lr * schedule_factor(config.schedule_spec(total), state.step);
  c.scalars.lr = float(c.lr), c.scalars.clip = config.clip;
  if (config.dtype == TrainDType::fp16) c.scalars.loss_scale = float(state.loss_scale);
  c.scalars.seed_lo = uint32_t(config.seed);
  c.scalars.seed_hi = uint32_t(config.seed >> 32);
  c.scalars.step = uint32_t(state.step);
  c.scalars.momentum = config.muon.momentum_at(state.step, total);
  return c;
}

}  // namespace hearth::inline train
