// A build without libzstd.
#include "sys/compression/compression.h"

namespace hearth::inline sys {

std::unique_ptr<Unpacker> make_zstd() { return nullptr; }
const char* zstd_library() { return ""; }

}  // namespace hearth::inline sys
