// How the steps of a pretraining run are divided into micro-batches, and what else changes from
// step to step.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/memory_budget.h"
#include "train/config.h"
#include "train/pretrain/programs.h"

namespace hearth::inline train {

// How the tokens of a step are divided into micro-batches, from `first_step` on, and the attention
// windows and the weights of losses of these steps, and whether their head is tied.
struct BatchShape {
  int64_t first_step = 0;
  int64_t B = 1, T = 1, micro_batches = 1;
  int64_t window = -1, long_window = -1;   // -1: the model's
  float mtp_loss = -1, further_loss = -1;  // -1: those of LossConfig
  bool tied = false;
  bool operator==(const BatchShape&) const = default;
};

// A note on each change of the size of a step or of the head that only a longer run would make.
std::vector<std::string> late_changes(const TrainConfig&);

// Every shape that the schedules of a run go through. All are checked before the run starts: each
// has to fit in the budget. A batch of 0 is the largest that fits, or what `chosen` says: a resumed
// run keeps the choices that it began with.
std::vector<BatchShape> batch_shapes(const ModelConfig&, const TrainConfig&, const MemoryBudget&,
                                     int64_t logits_bytes, std::span<const int64_t> chosen = {});

// Whether --batch or --tokens-per-step says how large every step is. The memory of a machine must
// not decide it, because the results would then differ from machine to machine.
bool has_step_size(const TrainConfig&);

// Tokens of the first optimizer step and of the longest sequence, from the settings alone.
int64_t first_step_tokens(const ModelConfig&, const TrainConfig&);
int64_t longest_sequence(const ModelConfig&, const TrainConfig&);

ProgramSpec program_spec(const ModelConfig&, const TrainConfig&, const BatchShape&,
                         int64_t logits_bytes);

}  // namespace hearth::inline train
