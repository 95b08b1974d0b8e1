#include "optim/schedule.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <numbers>

#include <fmt/ranges.h>

#include "sys/error.h"

namespace hearth::inline optim {

std::span<const std::string_view> names_of(Schedule) {
  static constexpr auto names =
      std::to_array<std::string_view>({"constant", "cosine", "linear", "wsd", "wsd_sqrt"});
  return names;
}

double schedule_factor(const ScheduleSpec& s, int64_t it) {
  if (it < s.warmup) return double(it + 1) / double(s.warmup);
  const double span = double(std::max<int64_t>(1, s.steps - s.warmup));
  const double done = std::min(1.0, double(it - s.warmup) / span);
  switch (s.kind) {
    case Schedule::constant:
      return 1;
    case Schedule::cosine:
      return s.floor + (1 - s.floor) * 0.5 * (1 + std::cos(std::numbers::pi * done));
    case Schedule::linear:
      return s.floor + (1 - s.floor) * (1 - done);
    case Schedule::wsd:
    case Schedule::wsd_sqrt: {
      const int64_t begin = s.steps - s.decay_steps;
      if (it < begin || s.decay_steps == 0) return 1;
      const double x = std::min(1.0, double(it - begin) / double(s.decay_steps));
      return s.kind == Schedule::wsd ? 1 - x : 1 - std::sqrt(x);
    }
  }
  return 1;
}

ScheduleSpec RateConfig::schedule_spec(int64_t total) const {
  const int64_t share = std::max<int64_t>(1, std::llround(decay_share * double(total)));
  return {schedule, total, warmup, decay_steps || decay_share == 0 ? decay_steps : share, lr_floor};
}

void RateConfig::check_rate(int64_t total) const {
  if (!(lr >= 0 && lr <= std::numeric_limits<float>::max()))
    fail_usage("--lr", "expected 0 or more that a float can hold, got {}", lr);
  if (warmup < 0) fail_usage("--warmup", "expected 0 or more, got {}", warmup);
  if (!(lr_floor >= 0 && lr_floor <= 1))
    fail_usage("--lr-floor", "expected a fraction from 0 to 1, got {}", lr_floor);
  const bool decays = schedule == Schedule::wsd || schedule == Schedule::wsd_sqrt;
  if (!(decay_share >= 0 && decay_share <= 1))
    fail_usage("--decay-share", "expected a share of the run from 0 to 1, got {}", decay_share);
  if (decay_share > 0 && !decays)
    fail_usage("--decay-share", "expected --schedule wsd or wsd_sqrt, got {}",
               names_of(schedule)[size_t(schedule)]);
  const bool lacks_length = decay_steps == 0 && decay_share == 0;
  if (decay_steps < 0 || (decays && (lacks_length || decay_steps > total)))
    fail_usage("--decay-steps", "expected {} with --schedule {}, got {}",
               decays ? fmt::format("1 to the {} steps, or --decay-share,", total) : "0 or more",
               names_of(schedule)[size_t(schedule)], decay_steps);
}

std::string RateConfig::oddity(int64_t total) const {
  if (total == 0 || warmup <= total) return {};
  return fmt::format(
      "--warmup {} is longer than the run of {} steps: the learning rate ends at {:.3g} and never "
      "reaches --lr {:.3g}",
      warmup, total, lr * schedule_factor(schedule_spec(total), total - 1), lr);
}

std::string RateConfig::change(int64_t before, int64_t total, int64_t step) const {
  const auto rate = [&](int64_t steps) {
    return fmt::format("{:.3g}", lr * schedule_factor(schedule_spec(steps), step));
  };
  if (rate(before) == rate(total)) return {};
  return fmt::format(
      "the run now ends at step {} instead of {}: at step {} the learning rate of --schedule {} "
      "changes from {} to {}",
      total, before, step, names_of(schedule)[size_t(schedule)], rate(before), rate(total));
}

template <class T>
StepsOf<T> StepsOf<T>::parse(std::string_view text, std::string_view where, int64_t total,
                             std::span<const std::string_view> names) {
  StepsOf r;
  const auto read = [&](std::string_view s, auto n) {
    const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), n);
    if (error != std::errc{} || end != s.data() + s.size() || n < 0 || !std::isfinite(double(n)))
      fail_usage(where, "expected N or a schedule STEP:N,STEP:N,.., got '{}'", text);
    return n;
  };
  const auto number = [&](std::string_view s) { return read(s, int64_t(0)); };
  const auto step_of = [&](std::string_view s) {
    if (!s.ends_with('%')) return number(s);
    const int64_t percent = number(s.substr(0, s.size() - 1));
    if (percent > 100) fail_usage(where, "expected steps of at most 100%, got '{}'", text);
    return (percent * total + 50) / 100;
  };
  const auto value_of = [&](std::string_view s) {
    if (names.empty()) return read(s, T(0));
    const auto at = std::ranges::find(names, s);
    if (at == names.end())
      fail_usage(where, "expected {0} or a schedule STEP:NAME,STEP:NAME,.. of {0}, got '{1}'",
                 fmt::join(names, " or "), text);
    return T(at - names.begin());
  };
  std::string_view rest = text;
  for (bool more = true; more;) {
    const size_t comma = rest.find(',');
    more = comma != std::string_view::npos;
    const std::string_view item = rest.substr(0, comma);
    if (more) rest.remove_prefix(comma + 1);
    const size_t colon = item.find(':');
    const bool plain = colon == std::string_view::npos;
    const int64_t step = plain ? 0 : step_of(item.substr(0, colon));
    const T value = value_of(plain ? item : item.substr(colon + 1));
    // In a short run two percentages may be the same step: the later one counts.
    const bool share = !plain && item[colon - 1] == '%';
    if (share && !r.changes_.empty() && r.changes_.back().first == step)
      r.changes_.back().second = value;
    else
      r.changes_.emplace_back(step, value);
  }
  for (size_t i = 0; i < r.changes_.size(); ++i)
    if (i == 0 ? r.changes_[0].first != 0 : r.changes_[i].first <= r.changes_[i - 1].first)
      fail_usage(where, "expected increasing steps that start at 0, got '{}'", text);
  return r;
}

template <class T>
T StepsOf<T>::at(int64_t step) const {
  T value = changes_.front().second;
  for (const auto& [first, v] : changes_)
    if (step >= first) value = v;
  return value;
}

template class StepsOf<int64_t>;
template class StepsOf<float>;

}  // namespace hearth::inline optim
