// From rewards to advantages, for groups of completions of one prompt. Some completions may have no
// reward.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "formats/enum_names.h"

namespace hearth::inline train {

enum class AdvantageScale : uint8_t { group, batch, none };
enum class Baseline : uint8_t { mean, median, ema, leave_one_out };
HEARTH_ENUM_NAMES(AdvantageScale, {"group", "batch", "none"})
HEARTH_ENUM_NAMES(Baseline, {"mean", "median", "ema", "leave_one_out"})

struct AdvantageSpec {
  AdvantageScale scale = AdvantageScale::group;
  Baseline baseline = Baseline::mean;
  int64_t group = 8;       // completions per prompt
  double ema_decay = 0.9;  // of the moving mean of rewards
};

// The moving average of rewards over steps, for Baseline::ema. It starts at the mean of the first
// step.
struct EmaBaseline {
  std::optional<double> mean;
};

struct Advantages {
  // One value per completion; 0 if there is no reward, in which case `rewarded` is 0 too.
  std::vector<double> values;
  std::vector<uint8_t> rewarded;
  int64_t groups = 0;                      // groups with two or more rewards
  int64_t equal_groups = 0;                // of those: all rewards equal, all advantages exactly 0
  double reward_mean = 0, reward_std = 0;  // over all rewards; std divides by n - 1
};

// (reward - baseline) / (std + 1e-4), with the std (n - 1) of the group or of the whole batch. A
// completion without a reward enters no statistic. A group with equal rewards, or with only one,
// carries no signal: its advantages are 0 for every baseline.
Advantages advantages(std::span<const std::optional<double>> rewards, const AdvantageSpec&,
                      EmaBaseline&);

}  // namespace hearth::inline train
