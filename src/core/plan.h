// Plan: one arena for all temporaries of a tape, laid out before anything runs.
#pragma once

#include "core/tape.h"

namespace hearth::inline core {

// Lets outputs reuse the memory of inputs that die in the same node, where the op allows it.
void alias(Tape&);

// What every tape goes through before its memory is planned: join_gates(),
// join_sums(), prune() and alias().
void simplify(Tape&);

struct Plan {
  std::vector<int64_t> offset;  // of each value that owns arena memory, else -1
  int64_t arena_bytes = 0;
  int64_t bound_bytes = 0;  // most bytes live at once: a lower bound for every plan
  int64_t total_bytes = 0;  // the size with one buffer per temporary
};

// Greedy by size: the largest buffers first, each at the lowest offset free over its lifetime.
Plan plan(const Tape&);

}  // namespace hearth::inline core
