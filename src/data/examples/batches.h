// From examples to batches: which examples a step uses, how they are packed into rows, and how rows
// become the tokens, positions, documents and targets that a program reads.
#pragma once

#include <span>
#include <vector>

#include "data/examples/examples.h"
#include "data/token_batch.h"

namespace hearth::inline data {

// Best-fit-decreasing bin packing: from the largest to the smallest, each item goes into the
// fullest row in which it still fits. Returns rows of at most `room` as indices into `sizes`; no
// size may exceed `room`.
std::vector<std::vector<size_t>> pack_best_fit(std::span<const int64_t> sizes, int64_t room);

// Number of positions of an example in a row: its last token is only a target.
inline int64_t places_of(const Example& e) { return int64_t(e.tokens.size()) - 1; }

// Rows of T positions, each with its examples side by side. Positions restart at each example, and
// with `documents` an example does not attend to others. The rows and targets of the batch are the
// learned tokens, in order. `B`: number of rows, padded with empty ones; 0: as many as given.
TokenBatch lay_out(std::span<const std::vector<const Example*>> rows, int64_t T, bool documents,
                   int64_t B = 0);
// The length for rows of one example each: the longest, rounded up so that few lengths occur. `few`
// rounds to still fewer lengths, for a device that prefers few programs.
int64_t common_length(std::span<const std::vector<const Example*>> rows, int64_t max_length,
                      bool few = false);

// A batch of pairs, with the chosen and the rejected completion in separate rows of the
// common_length(). Only chosen ones are `taught`.
TokenBatch lay_out_pairs(std::span<const Preference* const> pairs, int64_t max_length,
                         bool few = false);

// Which items a step trains on. Each epoch visits all items once, in an order that follows from the
// seed and the epoch, so that a resumed run needs only its step.
struct StepOrder {
  uint64_t items = 0, per_step = 1, seed = 0;
  int64_t steps_per_epoch() const { return int64_t((items + per_step - 1) / per_step); }
  std::vector<size_t> of(int64_t step) const;
};

// A random split of the indices below n: the held-out fraction, and the rest.
struct Split {
  std::vector<size_t> held, rest;
};
Split split_off(size_t n, double share, uint64_t seed);

}  // namespace hearth::inline data
