#include "train/bad_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace hearth {

bool is_spike(const RunState& state, double z, double loss) {
  const std::vector<double>& w = state.losses;
  if (w.size() < spike_window || !std::isfinite(loss)) return false;
  const double mean = std::accumulate(w.begin(), w.end(), 0.0) / double(w.size());
  double var = 0;
  for (double x : w) var += (x - mean) * (x - mean) / double(w.size());
  return loss > mean + z * std::sqrt(var);
}

void remember_loss(RunState& state, double loss) {
  state.losses.push_back(loss);
  if (state.losses.size() > spike_window) state.losses.erase(state.losses.begin());
}

bool follow_scale(RunState& state, double loss) {
  const bool overflowed = state.update.skip != 0 && std::isfinite(loss);
  if (overflowed && state.loss_scale > 1) {
    state.loss_scale /= 2, state.scale_steps = 0;
    state.update.streak = 0, state.spikes = 0;
    return true;
  }
  if (state.update.skip == 0 && ++state.scale_steps == loss_scale_window)
    state.loss_scale = std::min(2 * state.loss_scale, max_loss_scale), state.scale_steps = 0;
  return false;
}

std::string why_bad(const RunState& state) {
  const char* what = "without a finite gradient";
  if (state.spikes == max_bad_steps)
    what = "with a loss far above those before";
  else if (state.spikes > 0)
    what = "without a finite gradient or with a loss far above those before";
  return fmt::format("{} steps in a row {}", max_bad_steps, what);
}

}  // namespace hearth
