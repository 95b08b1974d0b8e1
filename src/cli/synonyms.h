// Names that flags have in other programs.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace hearth {

// The flag of the command that somebody who wrote `flag` most likely meant: one that has the name
// elsewhere, or one that is spelled nearly the same. Empty: none. Both with their dashes.
std::string meant_flag(const std::string& flag, const CLI::App& command);

// The same for a flag with one dash, as `-m` or `-n2`. Where two of ours are as likely it names
// both: "--n or --max-tokens".
std::string meant_by_short(const std::string& flag, const CLI::App& command);

}  // namespace hearth
