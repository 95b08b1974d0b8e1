// What happens when a mapped file is shortened while it is in use: reading past its new end raises
// SIGBUS. A table of mappings that a signal handler can read turns that into one line.
#pragma once

#include <cstddef>
#include <filesystem>

namespace hearth {

void note_mapping(const std::byte* begin, size_t size, const std::filesystem::path&);
void drop_mapping(const std::byte* begin);

// From now on a SIGBUS in a noted mapping names its file on stderr and ends the process with exit
// code 1. Any other SIGBUS is fatal as before.
void explain_lost_mappings();

}  // namespace hearth
