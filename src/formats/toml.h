// The TOML that settings are written in: `key = value` lines under [section] headings, where a
// value is a string, a number, true or false, or a list of those. Values come as text; what a flag
// makes of it is the flag's to say. An error is one line that names the line it is about.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace hearth {

struct TomlItem {
  std::string section;  // empty above the first heading
  std::string key;
  std::vector<std::string> values;  // one, or those of a list
};

// In the order of the text; a key twice in a section is an error.
std::vector<TomlItem> parse_toml(std::string_view text, std::string_view where);
std::vector<TomlItem> read_toml(const std::filesystem::path&);

}  // namespace hearth
