// Reading a mapped file past its end after it was truncated raises SIGBUS. A table of mappings that
// a signal handler can read turns this into a one-line error.
#pragma once

#include <cstddef>
#include <filesystem>

namespace hearth::inline sys {

void note_mapping(const std::byte* begin, size_t size, const std::filesystem::path&);
void drop_mapping(const std::byte* begin);

// Installs the handler: a SIGBUS in a registered mapping prints the file name on stderr and exits
// with code 1. Any other SIGBUS stays fatal.
void explain_lost_mappings();

}  // namespace hearth::inline sys
