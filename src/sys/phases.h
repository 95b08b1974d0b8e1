// Phases: the wall time of a training command by activity, for its result and for perf.jsonl.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sys/clock.h"

namespace hearth::inline sys {

class Phases {
 public:
  void add(std::string_view name, double seconds) {
    for (auto& [known, sum] : all_)
      if (known == name) return void(sum += seconds);
    all_.emplace_back(name, seconds);
  }
  // Adds the time since the last mark() (or since construction) to a phase.
  void mark(std::string_view name) {
    const auto now = Clock::now();
    add(name, std::chrono::duration<double>(now - marked_).count());
    marked_ = now;
  }
  // Seconds by phase in order of first use, then the total time since construction.
  nlohmann::ordered_json to_json() const {
    nlohmann::ordered_json j = nlohmann::ordered_json::object();
    for (const auto& [name, seconds] : all_) j[name] = seconds;
    j["total"] = seconds_since(begun_);
    return j;
  }

 private:
  Clock::time_point begun_ = Clock::now(), marked_ = begun_;
  std::vector<std::pair<std::string, double>> all_;
};

}  // namespace hearth::inline sys
