// The flags of every command that trains in a run folder.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "train/run.h"

namespace hearth {

struct RunFlags {
  std::string run;
  bool resume = false;
  int64_t stop_after_step = 0;

  void add(CLI::App&);
  // With signals and warnings; `dtype` is what the machine's peak is measured in, for MFU.
  void apply(RunSpec&, Backend&, TrainDType) const;
};

// Signals, warnings and the machine's peak for a run that a command starts.
void watch(RunSpec&, Backend&, TrainDType);

nlohmann::ordered_json result_json(const RunResult&, const Backend&);
// A run's result in one line.
std::string result_line(const RunResult&);

}  // namespace hearth
