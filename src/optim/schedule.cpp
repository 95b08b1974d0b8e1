#include "optim/schedule.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numbers>

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

Steps Steps::parse(std::string_view text, std::string_view where) {
  Steps r;
  const auto number = [&](std::string_view s) {
    int64_t n = 0;
    const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), n);
    if (error != std::errc{} || end != s.data() + s.size() || n < 0)
      fail_usage(where, "expected N or a schedule STEP:N,STEP:N,.., got '{}'", text);
    return n;
  };
  std::string_view rest = text;
  for (bool more = true; more;) {
    const size_t comma = rest.find(',');
    more = comma != std::string_view::npos;
    const std::string_view item = rest.substr(0, comma);
    if (more) rest.remove_prefix(comma + 1);
    const size_t colon = item.find(':');
    const bool plain = colon == std::string_view::npos;
    const int64_t step = plain ? 0 : number(item.substr(0, colon));
    r.changes_.emplace_back(step, number(plain ? item : item.substr(colon + 1)));
  }
  for (size_t i = 0; i < r.changes_.size(); ++i)
    if (i == 0 ? r.changes_[0].first != 0 : r.changes_[i].first <= r.changes_[i - 1].first)
      fail_usage(where, "expected increasing steps that start at 0, got '{}'", text);
  return r;
}

int64_t Steps::at(int64_t step) const {
  int64_t value = changes_.front().second;
  for (const auto& [first, v] : changes_)
    if (step >= first) value = v;
  return value;
}

}  // namespace hearth::inline optim
