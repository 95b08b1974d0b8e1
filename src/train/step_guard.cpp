#include "train/step_guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace hearth::inline train {

void StepGuard::update(UpdateProgram& program, const Scalars& s, std::optional<double> loss) {
  ++updates_;
  if (loss) program.set_loss(*loss);
  if (waits()) return update_and_wait(program, s, loss);
  program.run(s);
  sent_.send(program.state_tensor());
}

void StepGuard::update_and_wait(UpdateProgram& program, const Scalars& s,
                                std::optional<double> loss) {
  const double loss_now = loss ? *loss : program.loss();
  spike_ = spec_.spike_z > 0 && is_spike(loss_now);
  if (spike_) {
    UpdateState u = program.state();
    u.loss = float(loss_now), u.skip = 1, u.skipped += 1, u.streak += 1;
    program.set_state(u);
  } else {
    program.run(s);
  }
  accept(program.state());
  if (spec_.fp16 && !spike_ && follow_scale(loss_now)) program.set_state(state_.update);
  if (spec_.spike_z > 0 && state_.update.skip == 0) remember(loss_now);
}

void StepGuard::settle(int64_t count) {
  for (; count > 0; --count) {
    UpdateState u;
    std::memcpy(&u, sent_.take().data(), sizeof u);
    accept(u);
  }
}

void StepGuard::accept(const UpdateState& u) {
  state_.update = u;
  state_.spikes = u.streak == 0 ? 0 : std::min<int64_t>(state_.spikes + spike_, max_bad_steps);
}

// False until the window is full.
bool StepGuard::is_spike(double loss) const {
  const std::vector<double>& w = state_.losses;
  if (w.size() < spike_window || !std::isfinite(loss)) return false;
  const double mean = std::accumulate(w.begin(), w.end(), 0.0) / double(w.size());
  double var = 0;
  for (double x : w) var += (x - mean) * (x - mean) / double(w.size());
  return loss > mean + spec_.spike_z * std::sqrt(var);
}

void StepGuard::remember(double loss) {
  state_.losses.push_back(loss);
  if (state_.losses.size() > spike_window) state_.losses.erase(state_.losses.begin());
}

// Halves the scale when a gradient overflowed, and doubles it after enough steps without overflow.
// An overflow is part of finding the scale and not a bad step: true if it was removed from the row
// of bad updates.
bool StepGuard::follow_scale(double loss) {
  const bool overflowed = state_.update.skip != 0 && std::isfinite(loss);
  if (overflowed && state_.loss_scale > 1) {
    state_.loss_scale /= 2, state_.scale_steps = 0;
    state_.update.streak = 0, state_.spikes = 0;
    return true;
  }
  if (state_.update.skip == 0 && ++state_.scale_steps == loss_scale_window)
    state_.loss_scale = std::min(2 * state_.loss_scale, max_loss_scale), state_.scale_steps = 0;
  return false;
}

std::string StepGuard::why() const {
  const char* what = "without a finite gradient";
  if (state_.spikes >= max_bad_steps)
    what = "with a loss far above those before";
  else if (state_.spikes > 0)
    what = "without a finite gradient or with a loss far above those before";
  return fmt::format("{} steps in a row {}", max_bad_steps, what);
}

}  // namespace hearth::inline train
