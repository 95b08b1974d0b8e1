// The files that every run folder has: a lock while a process trains in it, and config.toml, the
// settings that the run was started with.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "sys/files/files.h"

namespace hearth::inline train {

// Throws if the folder has a run and it is not to be resumed. Called without the lock, this is only
// an early check: open_run_folder() repeats it.
void expect_new_or_resumed(const std::filesystem::path& run, bool resume);

// What helps against refused settings if the run has nothing to lose; else empty.
std::string way_out(const std::filesystem::path& run);

// Held while a process trains in a run folder, so that no second one writes to it.
Fd lock_run(const std::filesystem::path& run);

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

// A committed checkpoint is the only truth of a run; everything else in the folder follows from it.
// reconcile() points `latest` at `checkpoint`, the newest, and `best` at the checkpoint that its
// state names. It then removes older checkpoints, except the last `keep`, those two, and the one
// that bad steps roll back to. A checkpoint that is kept only because it is the best loses its
// optimizer state. Called after every commit and on resume, so that a kill in between loses
// nothing.
void reconcile(const std::filesystem::path& run, const std::filesystem::path& checkpoint, int keep);

// Rolls the folder back to `checkpoint`: removes later ones, since a resumed run takes the newest.
void go_back_to(const std::filesystem::path& run, const std::filesystem::path& checkpoint,
                int keep);

// The message of a resumed run that has no steps left.
std::string finished_already(const std::filesystem::path& run, int64_t step, int64_t steps);

// The step that a link of the run points at; -1: no such link.
int64_t linked_step(const std::filesystem::path& run, const std::string& link);

}  // namespace hearth::inline train
