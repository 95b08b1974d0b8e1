// Lockstep: one training step on two backends, node by node. Before each node, the second backend
// gets the first one's inputs, so a difference is caused by that node alone.
#pragma once

#include <functional>

#include "train/pretrain/programs.h"

namespace hearth::inline diag {

struct LockstepNode {
  std::string op, where;
  std::string output;  // its name or index
  Shape shape;
  double error = 0;      // largest difference / largest expected magnitude
  double tolerance = 0;  // for its dtype
  bool differs() const { return !(error <= tolerance); }
};

struct LockstepResult {
  int64_t nodes = 0, outputs = 0;
  std::optional<LockstepNode> first;          // the first node that differs
  std::map<std::string, LockstepNode> worst;  // by op
};

// Random tokens and targets; with documents, two of uneven length per sequence.
Batch random_batch(const ProgramSpec&, uint64_t seed);

// Runs forward, backward and update of the program on both backends from equal weights and tokens.
LockstepResult lockstep(const ProgramSpec&, Backend& tried, Backend& trusted, uint64_t seed);

}  // namespace hearth::inline diag
