// What every run folder has: a lock while a process trains in it, and config.toml, which says what
// the run was started with.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "io/files.h"

namespace hearth {

// An error where there is a run already and it is not to be resumed.
void expect_new_or_resumed(const std::filesystem::path& run, bool resume);

// Held while a process trains in a run folder: two would write over each other.
Fd lock_run(const std::filesystem::path& run);

// Makes the folder where there is none, locks it, and writes config.toml unless it is there.
Fd open_run_folder(const std::filesystem::path& run, const std::string& config_toml);

// Where the run in a locked folder goes on, its leftovers of a crash removed; nothing: from the
// start. `warn` is told of damaged checkpoints.
std::optional<std::filesystem::path> resumed_checkpoint(
    const std::filesystem::path& run, bool resume,
    const std::function<void(const std::string&)>& warn);

// key = value lines, as config.toml holds them.
std::string toml_lines(const nlohmann::ordered_json& settings);

}  // namespace hearth
