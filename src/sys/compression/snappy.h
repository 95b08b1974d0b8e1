// Snappy's raw format, used by pages of Parquet files.
#pragma once

#include <vector>

#include "sys/files/files.h"

namespace hearth::inline sys {

// Unpacks all of `in` into `out`, which must become `size` bytes. Returns an error message, or
// nullptr on success.
const char* unpack_snappy(std::vector<std::byte>& out, Bytes in, size_t size);

}  // namespace hearth::inline sys
