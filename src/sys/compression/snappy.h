// Snappy's raw format, as pages of Parquet files have it.
#pragma once

#include <vector>

#include "sys/files/files.h"

namespace hearth {

// All of `in` into `out`, which must come to `size` bytes: a message otherwise, nullptr when it
// did.
const char* unpack_snappy(std::vector<std::byte>& out, Bytes in, size_t size);

}  // namespace hearth
