// The flags of every command that trains in a run folder.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "train/run.h"

namespace hearth::inline cli {

struct RunFlags {
  std::string run;
  bool resume = false;
  int64_t stop_after_step = 0;

  void add(CLI::App&);
  // Also sets signals and warnings. The machine's peak, for MFU, is measured in `dtype`.
  void apply(RunSpec&, Backend&, TrainDType) const;
};

// Sets signals, warnings and the machine's peak for a run that a command starts.
void watch(RunSpec&, Backend&, TrainDType);

nlohmann::ordered_json result_json(const RunResult&, const Backend&);
// One line that summarises a run's result.
std::string result_line(const RunResult&);

}  // namespace hearth::inline cli
