// Where tests find their input files: the fixtures of tests/data, which the build unpacks. A folder
// with the same layout that HEARTH_TEST_DATA names is searched first and may hold more files.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace hearth::test {

inline std::filesystem::path test_data(const std::string& name) {
  if (const char* extra = std::getenv("HEARTH_TEST_DATA")) {
    const std::filesystem::path path = std::filesystem::path(extra) / name;
    if (std::filesystem::exists(path)) return path;
  }
  return std::filesystem::path(HEARTH_BINARY).parent_path() / "tests/data" / name;
}

}  // namespace hearth::test
