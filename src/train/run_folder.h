// What every run folder has: a lock while a process trains in it, and config.toml, which says what
// the run was started with.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "sys/files/files.h"

namespace hearth::inline train {

// An error where there is a run already and it is not to be resumed. Without the lock this is only
// an early word: open_run_folder() checks again.
void expect_new_or_resumed(const std::filesystem::path& run, bool resume);

// An error where the run in the folder began with other settings than `config_toml`, the names in
// `free` aside: a run keeps what it computes by. `steps` and `epochs` may grow: a run can be
// extended.
void expect_settings_of_run(const std::filesystem::path& run, const std::string& config_toml,
                            std::span<const std::string_view> free);

// Held while a process trains in a run folder: two would write over each other.
Fd lock_run(const std::filesystem::path& run);

// Makes the folder where there is none and locks it. Then expects no run in it, unless one is to be
// resumed, removes what a killed process left half written, and writes config.toml unless it is
// there. A last line of that file names the current folder.
Fd open_run_folder(const std::filesystem::path& run, bool resume, const std::string& config_toml);

// Lets config.toml of a run that was extended name the new length, where `config_toml` has more.
void write_length(const std::filesystem::path& run, const std::string& config_toml);

// The folder that the relative paths in config.toml are meant from; empty where it is not known.
std::filesystem::path started_in(const std::filesystem::path& run);

// The checkpoint that the run in a locked folder goes on from; nothing: from the start. `warn` is
// told of damaged ones.
std::optional<std::filesystem::path> resumed_checkpoint(
    const std::filesystem::path& run, bool resume,
    const std::function<void(const std::string&)>& warn);

// A checkpoint that is committed is the only truth of a run; all else in the folder follows from
// it. Points `latest` at `checkpoint`, the newest, and `best` at the one that its state names, and
// removes older ones beyond `keep`, those two, and the one that bad steps go back to. A
// checkpoint that stays only because it is the best loses its optimizer state.
// Called after every commit and on resume, so that a kill in between loses nothing.
void reconcile(const std::filesystem::path& run, const std::filesystem::path& checkpoint, int keep);

// For a run that goes back to `checkpoint`: later ones go, for a resumed run takes the newest.
void go_back_to(const std::filesystem::path& run, const std::filesystem::path& checkpoint,
                int keep);

// What a resumed run says that has no step left to make.
std::string finished_already(const std::filesystem::path& run, int64_t step, int64_t steps);

// The step that a link of the run points at; -1: there is none.
int64_t linked_step(const std::filesystem::path& run, const std::string& link);

// key = value lines, as config.toml holds them.
std::string toml_lines(const nlohmann::ordered_json& settings);

}  // namespace hearth::inline train
