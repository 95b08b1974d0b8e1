// Where tests find the files they read: the fixtures of tests/data, which the build unpacks. A
// folder that HEARTH_TEST_DATA names, laid out the same way, is looked at first and may hold more.
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
