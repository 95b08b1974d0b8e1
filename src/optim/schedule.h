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
  int64_t steps = 1;        // of the run
  int64_t warmup = 0;       // lr * (it + 1) / warmup
  int64_t decay_steps = 0;  // wsd
  double floor = 0;         // cosine and linear: final fraction of the peak
};

// The factor on the peak learning rate at the 0-based step `it`.
double schedule_factor(const ScheduleSpec&, int64_t it);

// The settings of the learning rate, for every training command.
struct RateConfig {
  double lr = 6e-4;
  Schedule schedule = Schedule::cosine;
  int64_t warmup = 0, decay_steps = 0;
  double decay_share = 0, lr_floor = 0.1;

  template <class V>
  void visit_rate(V&& v) {
    v("lr", lr, "peak learning rate");
    v("schedule", schedule,
      "learning-rate schedule: constant, cosine, linear, wsd (linear decay) or wsd_sqrt");
    v("warmup", warmup, "linear warmup steps");
    v("decay_steps", decay_steps,
      "wsd and wsd_sqrt: length of the final decay in steps; these two need it or decay_share");
    v("decay_share", decay_share,
      "wsd and wsd_sqrt without decay_steps: length of the final decay as a share of the run");
    v("lr_floor", lr_floor, "cosine and linear: final learning rate as a fraction of the peak");
  }

  // All of these are about a run of `total` steps.
  ScheduleSpec schedule_spec(int64_t total) const;
  void check_rate(int64_t total) const;  // throws if a setting is out of its range
  // A warning about settings that the run can use but hardly means; empty: none.
  std::string oddity(int64_t total) const;
  // A note that the learning rate at `step` changes because a run of `before` steps has become one
  // of `total`; empty: it does not.
  std::string change(int64_t before, int64_t total, int64_t step) const;
};

// A number of 0 or more that changes at given steps: "8192" or "0:8192,1000:65536". A step may be a
// percentage of the run's `total` steps: "0:8192,50%:65536". With `names`, these stand for the
// numbers from 0 on: "0:tied,50%:untied".
template <class T>
class StepsOf {
 public:
  static StepsOf parse(std::string_view text, std::string_view where, int64_t total,
                       std::span<const std::string_view> names = {});
  T at(int64_t step) const;
  std::span<const std::pair<int64_t, T>> changes() const { return changes_; }

 private:
  std::vector<std::pair<int64_t, T>> changes_;  // (first step, value), ascending
};
using Steps = StepsOf<int64_t>;
using WeightSteps = StepsOf<float>;

}  // namespace hearth::inline optim
