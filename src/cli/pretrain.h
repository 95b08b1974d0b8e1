// Starts a pretraining run as the commands do: with signals, warnings, samples and MFU.
#pragma once

#include "train/pretrain/pretrain.h"

namespace hearth::inline cli {

RunResult run_pretrain(PretrainSpec, Backend&);

}  // namespace hearth::inline cli
