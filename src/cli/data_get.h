// The subcommand `hearth data get`.
#pragma once

#include <CLI/CLI.hpp>

namespace hearth {

void add_data_get(CLI::App& data);

}  // namespace hearth
