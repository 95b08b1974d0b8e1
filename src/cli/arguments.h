// Merges arguments from the command line, the environment (HEARTH_*) and a TOML file (--config)
// into one list.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace hearth::inline cli {

// Adds a --config flag to every command without subcommands.
void allow_config_files(CLI::App&);

// The command line plus the flags that the environment and the file add. The command line overrides
// the environment, which overrides the file. With --resume the config.toml of the run adds what is
// still missing. An unknown key in a file is an error that names the most similar flag.
std::vector<std::string> merge_arguments(CLI::App&, const std::vector<std::string>& given);

// Turns a parser error into one line; for an unknown flag it names the most similar one.
[[noreturn]] void explain_parse_error(CLI::App&, const std::vector<std::string>& given,
                                      const CLI::ParseError&);

// The command line that continues the run of a stopped command.
std::string resume_command(CLI::App&, const std::vector<std::string>& given,
                           const std::string& program);

}  // namespace hearth::inline cli
