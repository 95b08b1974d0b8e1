// The pretraining run as commands start it: with signals, warnings, samples and MFU.
#pragma once

#include "train/trainer.h"

namespace hearth {

RunResult run_pretrain(RunSpec, Backend&);

// A run's result in one line.
std::string result_line(const RunResult&);

}  // namespace hearth
