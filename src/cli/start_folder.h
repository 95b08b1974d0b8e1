// Resumes a run from a folder other than the one it was started in.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace hearth::inline cli {

// If config.toml of `run` has a relative path that exists only from the folder where the run was
// started: changes to that folder, makes --run in `args` absolute, prints a note and returns true.
// Does nothing if an argument names something in the current folder. The settings are not changed,
// so the run stays the same.
bool go_to_start_folder(const std::filesystem::path& run, std::vector<std::string>& args);

}  // namespace hearth::inline cli
