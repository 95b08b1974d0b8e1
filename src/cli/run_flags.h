// The flags of every command that trains in a run folder.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "board/board_server.h"
#include "train/run.h"

namespace hearth::inline cli {

struct RunFlags {
  std::string run;
  bool resume = false;
  int64_t stop_after_step = 0;
  int64_t board = -1;  // port; -1: no board

  void add(CLI::App&);
  // The dashboard of --board, for as long as the object lives; null without the flag.
  std::unique_ptr<BoardThread> open_board() const;
  // Also sets signals and warnings. The machine's peak, for MFU, is measured in `dtype`.
  void apply(RunSpec&, Backend&, TrainDType) const;
};

// Sets signals, warnings and the machine's peak for a run that a command starts.
void watch(RunSpec&, Backend&, TrainDType);

// On a terminal: draws the loss (or the reward) of a run that has ended.
void show_curve(const std::filesystem::path& run);

nlohmann::ordered_json result_json(const RunResult&, const Backend&);
// One line that summarises a run's result, and its end: the time and the checkpoint.
std::string result_line(const RunResult&);
std::string result_end(const RunResult&);

}  // namespace hearth::inline cli
