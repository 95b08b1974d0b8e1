// From rewards to advantages: groups of completions of one prompt, of which some may have no
// reward.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace hearth::inline train {

enum class AdvantageScale : uint8_t { group, batch, none };
enum class Baseline : uint8_t { mean, median, ema, leave_one_out };
inline std::span<const std::string_view> names_of(AdvantageScale) {
  static constexpr auto names = std::to_array<std::string_view>({"group", "batch", "none"});
  return names;
}
inline std::span<const std::string_view> names_of(Baseline) {
  static constexpr auto names =
      std::to_array<std::string_view>({"mean", "median", "ema", "leave_one_out"});
  return names;
}

struct AdvantageSpec {
  AdvantageScale scale = AdvantageScale::group;
  Baseline baseline = Baseline::mean;
  int64_t group = 8;       // completions of a prompt
  double ema_decay = 0.9;  // of the moving mean of rewards
};

// The moving mean of rewards over steps, for Baseline::ema. Begins with the first step's own mean.
struct EmaBaseline {
  std::optional<double> mean;
};

struct Advantages {
  // One a completion; 0 where there is no reward, which `rewarded` tells apart.
  std::vector<double> values;
  std::vector<uint8_t> rewarded;
  int64_t groups = 0;                      // with two rewards or more
  int64_t equal_groups = 0;                // of those: all rewards the same, advantages exactly 0
  double reward_mean = 0, reward_std = 0;  // of all rewards, std by n - 1
};

// (reward - baseline) / (std + 1e-4), std by n - 1 of the group or of the whole batch. A completion
// without a reward is in no statistic. A group whose rewards are equal, or that has a single one,
// teaches nothing: its advantages are 0 under every baseline.
Advantages advantages(std::span<const std::optional<double>> rewards, const AdvantageSpec&,
                      EmaBaseline&);

}  // namespace hearth::inline train
