// From examples to batches: which of them make a step, how they are packed into rows, and how rows
// become the tokens, positions, documents and targets a program reads.
#pragma once

#include <span>
#include <vector>

#include "data/examples/examples.h"
#include "train/logprob_programs.h"

namespace hearth::inline train {

// Best-fit-decreasing: from the largest to the smallest, each into the fullest row it still fits
// in. Rows of at most `room`, as indices into `sizes`; none of those is larger.
std::vector<std::vector<size_t>> pack_best_fit(std::span<const int64_t> sizes, int64_t room);

// Places an example takes in a row: its last token is only a target.
inline int64_t places_of(const Example& e) { return int64_t(e.tokens.size()) - 1; }

// Rows of T places with the examples of each side by side: positions restart, and with `documents`
// none sees another. A row is asked about what its examples learn, in order. `B` rows or as many as
// there are examples for: further ones are empty, and nothing is asked about them.
TokenBatch lay_out(std::span<const std::vector<const Example*>> rows, int64_t T, bool documents,
                   int64_t B = 0);
// The length for rows of single examples: the longest of them, rounded up so that few differ.
// `few`: to still fewer lengths, for a device that prefers few programs.
int64_t common_length(std::span<const std::vector<const Example*>> rows, int64_t max_length,
                      bool few = false);

// Which items a step trains on: each epoch goes through all of them once, in an order of its own
// that follows from the seed alone, so that a resumed run needs no more than its step.
struct StepOrder {
  uint64_t items = 0, per_step = 1, seed = 0;
  int64_t steps_per_epoch() const { return int64_t((items + per_step - 1) / per_step); }
  std::vector<size_t> of(int64_t step) const;
};

// Indices below n, the chosen share of them first: what is held out, and the rest.
struct Split {
  std::vector<size_t> held, rest;
};
Split split_off(size_t n, double share, uint64_t seed);

}  // namespace hearth::inline train
