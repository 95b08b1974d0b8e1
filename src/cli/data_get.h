// `hearth data get`, a command of its own file.
#pragma once

#include <CLI/CLI.hpp>

namespace hearth {

void add_data_get(CLI::App& data);

}  // namespace hearth
