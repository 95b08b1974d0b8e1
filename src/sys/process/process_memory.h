// Current and peak memory of this process in bytes.
#pragma once

#include <cstdint>

namespace hearth::inline sys {

int64_t resident_bytes();
int64_t peak_resident_bytes();

}  // namespace hearth::inline sys
