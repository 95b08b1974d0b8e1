// StepGuard: every optimizer update of a run goes through it. It skips updates whose loss is a
// spike, follows fp16's loss scale, and counts bad updates in a row in the RunState.
#pragma once

#include <optional>
#include <string>

#include "train/run_state.h"
#include "train/update_program.h"

namespace hearth {

struct GuardSpec {
  double spike_z = 0;  // standard deviations above the last 128 losses; 0: no guard
  bool fp16 = false;   // gradients are scaled
};

class StepGuard {
 public:
  StepGuard(RunState& state, const GuardSpec& spec) : state_(state), spec_(spec) {}

  void begin_step() { updates_ = 0, spike_ = false; }
  // Updates the weights by the gradients in the store. `loss` is the host's; without one the loss
  // stays on the device, and only a guard against spikes waits for it.
  UpdateState update(UpdateProgram&, const Scalars&, std::optional<double> loss = {});

  // What the gradients of the next update are multiplied by.
  float loss_scale() const { return spec_.fp16 ? float(state_.loss_scale) : 1; }

  // In this step.
  int64_t updates() const { return updates_; }
  bool spike() const { return spike_; }  // the last update was skipped for its loss alone

  // Three bad updates in a row: the run has to go back.
  bool has_failed() const { return state_.update.streak >= max_bad_steps; }
  // What the row of bad updates was made of, in words.
  std::string why() const;

 private:
  bool is_spike(double loss) const;
  void remember(double loss);
  bool follow_scale(double loss);

  RunState& state_;
  GuardSpec spec_;
  int64_t updates_ = 0;
  bool spike_ = false;
};

}  // namespace hearth
