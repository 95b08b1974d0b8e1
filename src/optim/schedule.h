// Schedules: what changes with the step by rule, the learning rate above all.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hearth {

// wsd: warm up, stay, decay over the last `decay_steps`.
enum class Schedule : uint8_t { constant, cosine, linear, wsd, wsd_sqrt };
std::span<const std::string_view> names_of(Schedule);

struct ScheduleSpec {
  Schedule kind = Schedule::cosine;
  int64_t steps = 1;
  int64_t warmup = 0;       // lr * (it + 1) / warmup
  int64_t decay_steps = 0;  // wsd
  double floor = 0;         // fraction of the peak that cosine and linear end at
};

// Factor of the peak learning rate at step `it`, counted from 0.
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

}  // namespace hearth
