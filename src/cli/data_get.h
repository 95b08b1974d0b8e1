// The subcommand `hearth data get`.
#pragma once

#include <CLI/CLI.hpp>

namespace hearth::inline cli {

void add_data_get(CLI::App& data);

}  // namespace hearth::inline cli
