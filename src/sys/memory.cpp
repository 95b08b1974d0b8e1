#include "sys/memory.h"

#include <algorithm>
#include <fstream>

#include "sys/cores.h"

namespace hearth::inline sys {
namespace {

// The integer in a file; `unlimited_memory` if the file says "max" or does not exist.
int64_t number_in(const std::string& path) {
  std::ifstream f(path);
  int64_t n = 0;
  return f >> n ? n : unlimited_memory;
}

int64_t meminfo_available() {
  std::ifstream f("/proc/meminfo");
  std::string key, unit;
  int64_t kib = 0;
  while (f >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    std::getline(f, unit);
  }
  return unlimited_memory;
}

// The page cache of a group, which can be reclaimed.
int64_t reclaimable(const std::string& stat_path) {
  std::ifstream f(stat_path);
  std::string key;
  int64_t value = 0, total = 0;
  while (f >> key >> value)
    if (key == "inactive_file" || key == "total_inactive_file") total = std::max(total, value);
  return total;
}

}  // namespace

int64_t memory_left_in_group(const std::string& folder, bool v2) {
  const int64_t limit = number_in(folder + (v2 ? "/memory.max" : "/memory.limit_in_bytes"));
  const int64_t used = number_in(folder + (v2 ? "/memory.current" : "/memory.usage_in_bytes"));
  if (limit == unlimited_memory || used == unlimited_memory) return unlimited_memory;
  // The kernel updates its counters at different times, so the cache can exceed the memory in use.
  const int64_t held = std::max<int64_t>(0, used - reclaimable(folder + "/memory.stat"));
  return std::max<int64_t>(0, limit - held);
}

int64_t available_memory() {
  int64_t left = meminfo_available();  // the tightest limit on the way to the root
  for (const ControlGroup& g : control_groups("memory"))
    left = std::min(left, memory_left_in_group(g.folder, g.v2));
  return left;
}

}  // namespace hearth::inline sys
