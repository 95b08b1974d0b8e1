// Resuming a run from another folder than the one it was started in.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace hearth {

// Where config.toml of `run` has a relative path that exists only from the folder that the run was
// started in, goes to that folder, makes --run among `args` absolute, says so and returns true.
// Nothing happens where an argument names something in the current folder. The settings keep their
// text, so the run stays the same.
bool go_to_start_folder(const std::filesystem::path& run, std::vector<std::string>& args);

}  // namespace hearth
