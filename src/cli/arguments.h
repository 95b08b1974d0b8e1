// Arguments from three places, made one list: the command line, the environment (HEARTH_*), and a
// TOML file given by --config.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace hearth {

// Gives every command without subcommands a --config flag.
void allow_config_files(CLI::App&);

// The command line with what the environment and the file add: flags already there win, then the
// environment. An unknown key of the file is an error that names the nearest flag.
std::vector<std::string> merge_arguments(CLI::App&, const std::vector<std::string>& given);

// Turns a parser's complaint into one line; an unknown flag with the nearest known one.
[[noreturn]] void explain_parse_error(CLI::App&, const std::vector<std::string>& given,
                                      const CLI::ParseError&);

}  // namespace hearth
