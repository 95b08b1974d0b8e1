// The tables of a settings file: which command the keys of each belong to.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "formats/toml.h"

namespace hearth::inline cli {

std::vector<CLI::App*> subcommands(CLI::App&);
std::vector<const CLI::App*> subcommands(const CLI::App&);

// The settings of a file that concern the command. A table that belongs to no command is an error.
std::vector<TomlItem> settings_for(const CLI::App& command, const std::vector<TomlItem>& all,
                                   const std::string& file);

// The recipe of a settings file for pretrain whose model `command` describes, and whose settings
// belong to that model; empty: none.
std::string described_recipe(const CLI::App& command, const std::vector<TomlItem>& settings);

}  // namespace hearth::inline cli
