// A build without zlib.
#include "sys/compression/compression.h"

namespace hearth::inline sys {

std::string gzip(Bytes) { return {}; }
std::unique_ptr<Unpacker> make_gzip() { return nullptr; }
const char* gzip_library() { return ""; }

}  // namespace hearth::inline sys
