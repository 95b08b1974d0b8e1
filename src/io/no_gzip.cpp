// A build without zlib.
#include "io/packed.h"

namespace hearth {

std::unique_ptr<Unpacker> make_gzip() { return nullptr; }
const char* gzip_library() { return ""; }

}  // namespace hearth
