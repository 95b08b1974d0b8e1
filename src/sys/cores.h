// The cores that this process may use, limited by its CPU affinity and its control groups.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hearth::inline sys {

// Core numbers; empty if the system does not report them.
std::vector<int> usable_cores();
// The number of usable cores, limited by the CPU quota of the control groups; at least 1.
int usable_threads();

// The number of cores in a cgroup cpu.max value ("150000 100000"), rounded up; none if unlimited.
std::optional<int> quota_cores(std::string_view cpu_max);

struct ControlGroup {
  std::string folder;
  bool v2;  // else cgroup v1, in the controller's hierarchy
};
// The groups that limit `controller` for this process, from its own group up to the root. Inside a
// container the path of the group is often not visible; the root of the mount is then the group.
std::vector<ControlGroup> control_groups(std::string_view controller);

}  // namespace hearth::inline sys
