// One training step on two backends, node by node. Each node of the second starts from what the
// first had at that moment, so that what differs is the node's own doing.
#pragma once

#include <functional>

#include "train/pretrain/programs.h"

namespace hearth::inline diag {

struct LockstepNode {
  std::string op, where;
  std::string output;  // its name or number
  Shape shape;
  double error = 0;      // largest difference over the largest element
  double tolerance = 0;  // of its dtype
  bool differs() const { return !(error <= tolerance); }
};

struct LockstepResult {
  int64_t nodes = 0, outputs = 0;
  std::optional<LockstepNode> first;          // the first that differs
  std::map<std::string, LockstepNode> worst;  // by op
};

// Tokens and targets without a pattern; with documents, two of uneven length in a sequence.
Batch random_batch(const ProgramSpec&, uint64_t seed);

// Runs forward, backward and update of the program on both, from the same weights and tokens.
LockstepResult lockstep(const ProgramSpec&, Backend& tried, Backend& trusted, uint64_t seed);

}  // namespace hearth::inline diag
