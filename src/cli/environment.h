// The environment variables of the program: HEARTH_<FLAG> gives a flag its value, and a few others
// choose kernels and folders.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace hearth::inline cli {

// "HEARTH_TOKENS_PER_STEP" for "--tokens-per-step".
std::string environment_name(const std::string& flag);

// Prints one line for each variable HEARTH_* that no command and no kernel reads, with the most
// similar known name: a misspelled variable would otherwise be ignored without a word.
void warn_about_unknown_variables(const CLI::App&);

}  // namespace hearth::inline cli
