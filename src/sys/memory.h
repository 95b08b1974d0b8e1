// The memory that this process may still use, limited by the machine and its control groups.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace hearth::inline sys {

constexpr int64_t unlimited_memory = std::numeric_limits<int64_t>::max();

// Bytes; `unlimited_memory` if the system does not say.
int64_t available_memory();

// Bytes that a control group has left, from the files of its folder (v2, or v1 with other names).
int64_t memory_left_in_group(const std::string& folder, bool v2);

}  // namespace hearth::inline sys
