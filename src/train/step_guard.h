// StepGuard: every optimizer update of a run goes through it. It skips updates whose loss is a
// spike, adjusts fp16's loss scale, and counts consecutive bad updates in the RunState. The device
// itself skips updates that are not finite, so the host may learn of an update one step late.
#pragma once

#include <optional>
#include <string>

#include "core/read_queue.h"
#include "optim/update_program.h"
#include "train/run_state.h"

namespace hearth::inline train {

struct GuardSpec {
  double spike_z = 0;  // standard deviations above the mean of the last 128 losses; 0: off
  bool fp16 = false;   // gradients carry a loss scale
};

class StepGuard {
 public:
  StepGuard(RunState& state, Backend& backend, const GuardSpec& spec)
      : state_(state), spec_(spec), sent_(backend) {}

  void begin_step() { updates_ = 0, spike_ = false; }
  // Updates the weights with the gradients in the store. `loss` is a loss that the host computed;
  // without it, the loss stays on the device. The outcome is in the RunState after settle(), or
  // right away if the guard waits().
  void update(UpdateProgram&, const Scalars&, std::optional<double> loss = {});
  // Whether update() waits for the device: the spike test needs the loss before its update, and
  // fp16 sets the next loss scale by the outcome of this update. A caller that reads the loss later
  // must read it first and pass it to update().
  bool waits() const { return spec_.spike_z > 0 || spec_.fp16; }
  // Updates that were launched and whose outcome is not in the RunState yet.
  int64_t in_flight() const { return int64_t(sent_.size()); }
  // Waits for the oldest `count` updates in flight, or for all.
  void settle(int64_t count);
  void settle() { settle(in_flight()); }

  // The factor on the gradients of the next update.
  float loss_scale() const { return spec_.fp16 ? float(state_.loss_scale) : 1; }

  // Number of updates in this step.
  int64_t updates() const { return updates_; }
  bool spike() const { return spike_; }  // the last update was skipped only because of its loss

  // Three bad updates in a row: the run has to roll back.
  bool has_failed() const { return state_.update.streak >= max_bad_steps; }
  // Whether the updates in flight could complete such a row. They must be settled before more work
  // is launched.
  bool may_fail() const {
    return in_flight() > 0 && state_.update.streak + float(in_flight()) >= max_bad_steps;
  }
  // Describes the row of bad updates.
  std::string why() const;

 private:
  bool is_spike(double loss) const;
  void remember(double loss);
  bool follow_scale(double loss);
  void accept(const UpdateState&);
  void update_and_wait(UpdateProgram&, const Scalars&, std::optional<double> loss);

  RunState& state_;
  GuardSpec spec_;
  ReadQueue sent_;  // the UpdateState after each update in flight
  int64_t updates_ = 0;
  bool spike_ = false;
};

}  // namespace hearth::inline train
