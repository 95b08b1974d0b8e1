#include "sys/cores.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <limits>
#include <thread>

namespace hearth::inline sys {

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
  int64_t quota = 0, period = 0;  // CPU time per period, both in microseconds
  const auto [space, error] = std::from_chars(cpu_max.data(), end, quota);
  // No limit is "max 100000", or -1 in cgroups v1.
  if (error != std::errc{} || quota < 1 || space == end || *space != ' ') return {};
  if (std::from_chars(space + 1, end, period).ec != std::errc{} || period < 1) return {};
  const int64_t cores = quota / period + (quota % period != 0);
  return int(std::clamp<int64_t>(cores, 1, std::numeric_limits<int>::max()));
}

std::vector<ControlGroup> control_groups(std::string_view controller) {
  const std::string wanted = "," + std::string(controller) + ",";
  std::vector<ControlGroup> groups;
  std::ifstream f("/proc/self/cgroup");
  for (std::string line; std::getline(f, line);) {
    // number:controller,controller:path
    const size_t names = line.find(':') + 1, end = line.find(':', names);
    if (names == 0 || end == line.npos) continue;
    const bool v2 = line.starts_with("0::");
    const std::string named = "," + line.substr(names, end - names) + ",";
    if (!v2 && named.find(wanted) == named.npos) continue;
    const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + std::string(controller);
    std::string path = line.substr(end + 1);
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
  const auto first_line = [](const std::string& file) {
    std::ifstream f(file);
    std::string line;
    std::getline(f, line);
    return line;
  };
  for (const ControlGroup& g : control_groups("cpu")) {
    const std::string line = g.v2 ? first_line(g.folder + "/cpu.max")
                                  : first_line(g.folder + "/cpu.cfs_quota_us") + " " +
                                        first_line(g.folder + "/cpu.cfs_period_us");
    threads = std::min(threads, quota_cores(line).value_or(threads));
  }
  return std::max(1, threads);
}

}  // namespace hearth::inline sys
