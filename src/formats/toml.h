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
  size_t begin = 0, end = 0;        // of the value in the text
};

// Items in text order; a duplicate key in a section is an error.
std::vector<TomlItem> parse_toml(std::string_view text, std::string_view where);
std::vector<TomlItem> read_toml(const std::filesystem::path&);
// The text with another value of a key, written as in TOML. A key that the text lacks is added
// after the last one of those before the first heading. The rest stays as it is.
std::string with_toml_value(std::string text, std::string_view key, std::string_view value);

}  // namespace hearth::inline formats
