// How many cores this process may use, by its affinity and by the limits of its control groups.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hearth {

// Their numbers; empty where the system does not say.
std::vector<int> usable_cores();
// One for each of those, but no more than the CPU time that the control groups grant; at least 1.
int usable_threads();

// The cores' worth of a cpu.max of control groups ("150000 100000"), rounded up; none without a
// limit.
std::optional<int> quota_cores(std::string_view cpu_max);

struct ControlGroup {
  std::string folder;
  bool v2;  // else of the controller's own, older hierarchy
};
// The groups that limit this process in what `controller` names, from its own up to the root. In a
// container the group's path is often not visible from inside; the root of the mount is then the
// group itself.
std::vector<ControlGroup> control_groups(std::string_view controller);

}  // namespace hearth
