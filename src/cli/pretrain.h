// The pretraining run as commands start it: with signals, warnings, samples and MFU.
#pragma once

#include "train/trainer.h"

namespace hearth {

RunResult run_pretrain(RunSpec, Backend&);

}  // namespace hearth
