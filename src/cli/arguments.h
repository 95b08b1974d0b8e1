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
// environment. An unknown key of the file is an error that names the flag meant.
std::vector<std::string> merge_arguments(CLI::App&, const std::vector<std::string>& given);

// Turns a parser's complaint into one line; an unknown flag with the one that was meant.
[[noreturn]] void explain_parse_error(CLI::App&, const std::vector<std::string>& given,
                                      const CLI::ParseError&);

// The command line that goes on with the run that a command was stopped in.
std::string resume_command(CLI::App&, const std::vector<std::string>& given,
                           const std::string& program);

}  // namespace hearth
