// The pretraining run as commands start it: with signals, warnings, samples and MFU.
#pragma once

#include "train/pretrain/pretrain.h"

namespace hearth {

RunResult run_pretrain(PretrainSpec, Backend&);

}  // namespace hearth
