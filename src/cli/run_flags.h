// The flags of every command that trains in a run folder.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "board/board_server.h"
#include "train/run.h"

namespace hearth::inline cli {

struct RunFlags {
  std::string run;
  bool resume = false;
  int64_t stop_after_step = -1;  // -1: not given
  int64_t board = -1;            // port; -1: no board

  // `length` names the flags that extend a resumed run.
  void add(CLI::App&, const std::string& length);
  // Throws if the folder has a run and --resume is missing. Commands call it before they look at
  // other flags: without --resume, those of the run are missing too.
  void check_folder() const;
  // Whether the call continues a run, instead of starting one.
  bool goes_on() const;
  // The dashboard of --board, for as long as the object lives; null without the flag.
  std::unique_ptr<BoardThread> open_board() const;
  void place(RunSpec&) const;  // sets what the flags say
  // Also sets signals and warnings. The machine's peak, for MFU, is measured in `dtype`.
  void apply(RunSpec&, Backend&, TrainDType) const;
  // On stderr: why a run ended before its last step. `target` says what a run that ended at its
  // target has reached.
  void explain_ending(const RunResult&, const std::string& target) const;
};

// Sets signals, warnings and the machine's peak for a run that a command starts.
void watch(RunSpec&, Backend&, TrainDType);

// Adds a note if a file is among both the training and the validation data of a new run.
void note_shared_files(RunSpec&, const std::vector<std::filesystem::path>& train,
                       const std::vector<std::filesystem::path>& val);

// On a terminal: draws the loss (or the reward) of a run that has ended.
void show_curve(const std::filesystem::path& run);

// Throws if a run made all its steps and diverged. A run that was stopped may still recover.
void expect_finite(const RunResult&);

nlohmann::ordered_json result_json(const RunResult&, const Backend&);
// "validation loss 1.9987 reached --target-loss 2"
std::string reached_loss(const RunResult&, double target_loss);
// One line that summarises a run's result, and its end: the time and the checkpoint.
std::string result_line(const RunResult&);
std::string result_end(const RunResult&);

}  // namespace hearth::inline cli
