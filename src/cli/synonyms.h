// Flag names that other programs use.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace hearth::inline cli {

// The flag of the command that a user who wrote `flag` most likely meant: one that has this name in
// another program, or one with a similar spelling. Empty: none. Both include their dashes.
std::string meant_flag(const std::string& flag, const CLI::App& command);

// The same for a flag with one dash, such as `-m` or `-n2`. If two flags are equally likely it
// names both: "--n or --max-tokens".
std::string meant_by_short(const std::string& flag, const CLI::App& command);

}  // namespace hearth::inline cli
