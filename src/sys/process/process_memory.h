// Bytes of memory this process holds now, and at most so far.
#pragma once

#include <cstdint>

namespace hearth {

int64_t resident_bytes();
int64_t peak_resident_bytes();

}  // namespace hearth
