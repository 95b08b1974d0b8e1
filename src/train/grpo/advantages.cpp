#include "train/grpo/advantages.h"

#include <algorithm>
#include <cmath>

#include "sys/error.h"

namespace hearth::inline train {
namespace {

constexpr double std_floor = 1e-4;

double mean_of(std::span<const double> x) {
  double sum = 0;
  for (const double r : x) sum += r;
  return x.empty() ? 0 : sum / double(x.size());
}

double deviation_of(std::span<const double> x) {
  if (x.size() < 2) return 0;
  const double mean = mean_of(x);
  double sum = 0;
  for (const double r : x) sum += (r - mean) * (r - mean);
  return std::sqrt(sum / double(x.size() - 1));
}

double median_of(std::vector<double> x) {
  std::ranges::sort(x);
  const size_t half = x.size() / 2;
  return x.size() % 2 ? x[half] : 0.5 * (x[half - 1] + x[half]);
}

// The value that is subtracted from the i-th reward of a group.
double baseline_of(const std::vector<double>& group, size_t i, Baseline kind, double ema) {
  switch (kind) {
    case Baseline::mean:
      return mean_of(group);
    case Baseline::median:
      return median_of(group);
    case Baseline::ema:
      return ema;
    case Baseline::leave_one_out:
      return (mean_of(group) * double(group.size()) - group[i]) / double(group.size() - 1);
  }
  return 0;
}

}  // namespace

Advantages advantages(std::span<const std::optional<double>> rewards, const AdvantageSpec& spec,
                      EmaBaseline& ema) {
  if (spec.group < 1 || rewards.size() % size_t(spec.group) != 0)
    fail("advantages", "expected whole groups of {}, got {} rewards", spec.group, rewards.size());
  Advantages a;
  a.values.assign(rewards.size(), 0), a.rewarded.assign(rewards.size(), 0);
  std::vector<double> all;
  for (const auto& r : rewards)
    if (r) all.push_back(*r);
  a.reward_mean = mean_of(all), a.reward_std = deviation_of(all);
  const double before = ema.mean.value_or(a.reward_mean);

  for (size_t begin = 0; begin < rewards.size(); begin += size_t(spec.group)) {
    std::vector<double> group;
    std::vector<size_t> at;
    for (size_t i = begin; i < begin + size_t(spec.group); ++i)
      if (rewards[i]) group.push_back(*rewards[i]), at.push_back(i), a.rewarded[i] = 1;
    if (group.size() < 2) continue;
    ++a.groups;
    if (std::ranges::all_of(group, [&](double r) { return r == group[0]; })) {
      ++a.equal_groups;
      continue;
    }
    double scale = 1;
    if (spec.scale == AdvantageScale::group) scale = deviation_of(group) + std_floor;
    if (spec.scale == AdvantageScale::batch) scale = a.reward_std + std_floor;
    for (size_t i = 0; i < group.size(); ++i)
      a.values[at[i]] = (group[i] - baseline_of(group, i, spec.baseline, before)) / scale;
  }
  if (!all.empty())
    ema.mean =
        ema.mean ? spec.ema_decay * before + (1 - spec.ema_decay) * a.reward_mean : a.reward_mean;
  return a;
}

}  // namespace hearth::inline train
