// Plan: one arena for all temporaries of a tape, known before anything runs.
#pragma once

#include "core/tape.h"

namespace hearth::inline core {

// Lets outputs take over the memory of inputs that die in the same node, as each op allows.
void alias(Tape&);

struct Plan {
  std::vector<int64_t> offset;  // per value that owns arena memory, else -1
  int64_t arena_bytes = 0;
  int64_t bound_bytes = 0;  // most bytes live at once: no plan can do with less
  int64_t total_bytes = 0;  // what one buffer per temporary would take
};

// Greedy by size: the largest buffers first, each at the lowest offset free over its whole life.
Plan plan(const Tape&);

}  // namespace hearth::inline core
