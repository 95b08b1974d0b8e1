#include "core/cores.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <limits>
#include <thread>

namespace hearth {

std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &set)) cores.push_back(i);
  return cores;
}

std::optional<int> quota_cores(std::string_view cpu_max) {
  const char* end = cpu_max.data() + cpu_max.size();
  int64_t quota = 0, period = 0;  // microseconds of CPU time in so many of the clock's
  const auto [space, error] = std::from_chars(cpu_max.data(), end, quota);
  if (error != std::errc{} || space == end || *space != ' ') return {};  // also "max 100000"
  if (std::from_chars(space + 1, end, period).ec != std::errc{} || period < 1) return {};
  const int64_t cores = quota / period + (quota % period != 0);
  return int(std::clamp<int64_t>(cores, 1, std::numeric_limits<int>::max()));
}

std::vector<ControlGroup> control_groups(std::string_view controller) {
  const std::string key = ":" + std::string(controller) + ":";
  std::vector<ControlGroup> groups;
  std::ifstream f("/proc/self/cgroup");
  for (std::string line; std::getline(f, line);) {
    const bool v2 = line.starts_with("0::");
    const size_t named = line.find(key);
    if (!v2 && named == line.npos) continue;
    const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + std::string(controller);
    std::string path = line.substr(v2 ? 3 : named + key.size());
    for (;;) {
      groups.push_back({root + path, v2});
      if (path.empty() || path == "/") break;
      path.resize(path.rfind('/') == path.npos ? 0 : path.rfind('/'));
    }
  }
  return groups;
}

int usable_threads() {
  const std::vector<int> cores = usable_cores();
  int threads = cores.empty() ? int(std::thread::hardware_concurrency()) : int(cores.size());
  for (const ControlGroup& g : control_groups("cpu")) {
    if (!g.v2) continue;
    std::ifstream f(g.folder + "/cpu.max");
    std::string line;
    std::getline(f, line);
    threads = std::min(threads, quota_cores(line).value_or(threads));
  }
  return std::max(1, threads);
}

}  // namespace hearth
