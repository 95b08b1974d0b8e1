// The values of JSON Schema's `format` that strings can have, as regular expressions.
#pragma once

#include <cstdint>
#include <string>

namespace hearth::inline grammar {

// The expression that all of a string must match. `bounded`: the length of the string is
// bounded already. Null for an unknown format.
const std::string* format_pattern(const std::string& format, bool bounded);
// Formats write no more characters of their own accord.
constexpr int64_t longest_format = 2000;
std::string known_formats();  // for errors

}  // namespace hearth::inline grammar
