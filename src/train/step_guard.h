// StepGuard: every optimizer update of a run goes through it. It skips updates whose loss is a
// spike, follows fp16's loss scale, and counts bad updates in a row in the RunState. The device
// itself skips updates that are not finite, so the host may learn of an update one step late.
#pragma once

#include <optional>
#include <string>

#include "core/read_queue.h"
#include "train/run_state.h"
#include "train/update_program.h"

namespace hearth::inline train {

struct GuardSpec {
  double spike_z = 0;  // standard deviations above the last 128 losses; 0: no guard
  bool fp16 = false;   // gradients are scaled
};

class StepGuard {
 public:
  StepGuard(RunState& state, Backend& backend, const GuardSpec& spec)
      : state_(state), spec_(spec), sent_(backend) {}

  void begin_step() { updates_ = 0, spike_ = false; }
  // Updates the weights by the gradients in the store. `loss` is the host's; without one the loss
  // stays on the device. What came of it is in the RunState after settle(), or already here where
  // the guard waits().
  void update(UpdateProgram&, const Scalars&, std::optional<double> loss = {});
  // Spikes are judged by the loss before its update, and fp16 scales the next gradients by what
  // became of these: the host then waits in update(), and is to be given the loss that it logs.
  bool waits() const { return spec_.spike_z > 0 || spec_.fp16; }
  // Updates that were launched and whose result is not in the RunState yet.
  int64_t in_flight() const { return int64_t(sent_.size()); }
  // Waits for the oldest `count` of them, or for all.
  void settle(int64_t count);
  void settle() { settle(in_flight()); }

  // What the gradients of the next update are multiplied by.
  float loss_scale() const { return spec_.fp16 ? float(state_.loss_scale) : 1; }

  // In this step.
  int64_t updates() const { return updates_; }
  bool spike() const { return spike_; }  // the last update was skipped for its loss alone

  // Three bad updates in a row: the run has to go back.
  bool has_failed() const { return state_.update.streak >= max_bad_steps; }
  // Whether those in flight may turn out to be such a row: they are to be settled before more is
  // launched.
  bool may_fail() const {
    return in_flight() > 0 && state_.update.streak + float(in_flight()) >= max_bad_steps;
  }
  // What the row of bad updates was made of, in words.
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
