// The subset of TOML used for settings: `key = value` lines under [section] headings. A value is a
// string, a number, true or false, or a list of these. Values are returned as text, which the flags
// parse. Errors are one line and name the line number.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace hearth::inline formats {

struct TomlItem {
  std::string section;  // empty before the first heading
  std::string key;
  std::vector<std::string> values;  // one value, or the elements of a list
};

// Items in text order; a duplicate key in a section is an error.
std::vector<TomlItem> parse_toml(std::string_view text, std::string_view where);
std::vector<TomlItem> read_toml(const std::filesystem::path&);

}  // namespace hearth::inline formats
