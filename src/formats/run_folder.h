// The files that every run folder has: a lock while a process trains in it, and config.toml, the
// settings that the run was started with.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "sys/files/files.h"

namespace hearth::inline formats {

// Throws if the folder has a run and it is not to be resumed. Called without the lock, this is only
// an early check: open_run_folder() repeats it.
void expect_new_or_resumed(const std::filesystem::path& run, bool resume);

// What helps against refused settings if the run has nothing to lose; else empty.
std::string way_out(const std::filesystem::path& run);

// Held while a process trains in a run folder, so that no second one writes to it.
Fd lock_run(const std::filesystem::path& run);
// Whether a process trains in the folder. Looks by a shared lock, so that several readers do not
// see each other.
bool is_running(const std::filesystem::path& run);

// Creates the folder if necessary and locks it. Then it throws if there is a run that is not to be
// resumed, on resume removes partly written files of a killed process, and writes config.toml if
// there is none. The last line of that file records the current folder.
Fd open_run_folder(const std::filesystem::path& run, bool resume, const std::string& config_toml);

// The folder that relative paths in config.toml start from; empty if unknown.
std::filesystem::path started_in(const std::filesystem::path& run);

// The checkpoint from which the run in a locked folder continues; nothing: it starts from step 0.
// `warn` is called for damaged checkpoints.
std::optional<std::filesystem::path> resumed_checkpoint(
    const std::filesystem::path& run, bool resume,
    const std::function<void(const std::string&)>& warn);

// The links of a run, such as `latest` and `best`: each points at a checkpoint.
void point_link(const std::filesystem::path& run, const std::string& link, int64_t step);
void remove_link(const std::filesystem::path& run, const std::string& link);
int64_t linked_step(const std::filesystem::path& run, const std::string& link);  // -1: no such link

}  // namespace hearth::inline formats
