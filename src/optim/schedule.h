// Schedules: values that change with the step, mainly the learning rate.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hearth::inline optim {

// wsd: warm up, hold, then decay over the last `decay_steps`.
enum class Schedule : uint8_t { constant, cosine, linear, wsd, wsd_sqrt };
std::span<const std::string_view> names_of(Schedule);

struct ScheduleSpec {
  Schedule kind = Schedule::cosine;
  int64_t steps = 1;
  int64_t warmup = 0;       // lr * (it + 1) / warmup
  int64_t decay_steps = 0;  // wsd
  double floor = 0;         // cosine and linear: final fraction of the peak
};

// The factor on the peak learning rate at the 0-based step `it`.
double schedule_factor(const ScheduleSpec&, int64_t it);

// A number that changes at given steps: "8192" or "0:8192,1000:65536".
class Steps {
 public:
  static Steps parse(std::string_view text, std::string_view where);
  int64_t at(int64_t step) const;
  std::span<const std::pair<int64_t, int64_t>> changes() const { return changes_; }

 private:
  std::vector<std::pair<int64_t, int64_t>> changes_;  // (first step, value), ascending
};

}  // namespace hearth::inline optim
