// TokenBatch: sequences and the tokens of them that are asked about. BatchView: what programs read
// of it, or of a batch of the loader.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/loader.h"

namespace hearth::inline data {

// B sequences of T tokens each, and which tokens of them are asked about: after row
// rows[r] = b * T + t comes targets[r]. Rows differ. A shorter sequence is padded at its end.
struct TokenBatch {
  int64_t B = 0, T = 0;
  std::vector<int32_t> tokens = {};     // (B, T)
  std::vector<int32_t> positions = {};  // (B, T); empty: 0 .. T - 1 in each
  std::vector<int32_t> documents = {};  // (B, T) for a document mask; empty: none
  std::vector<int32_t> counts = {};     // (B, T): 0 for padding; empty: none
  std::vector<int32_t> rows = {}, targets = {};
  std::vector<uint8_t> taught = {};  // of each row: 0: modules do not learn it; empty: they do
};

// A batch as programs read it. Without `rows` every position is asked about: `targets` is (B, T),
// and -100 where there is none.
struct BatchView {
  BatchView(const TokenBatch& b)
      : B(b.B),
        T(b.T),
        tokens(b.tokens),
        positions(b.positions),
        documents(b.documents),
        counts(b.counts),
        rows(b.rows),
        targets(b.targets),
        taught(b.taught),
        count(int64_t(b.rows.size())) {}
  BatchView(const Batch& b, int64_t B, int64_t T, bool masks_documents)
      : B(B), T(T), tokens(b.tokens), positions(b.positions), targets(b.targets), count(b.count) {
    if (masks_documents) documents = b.documents;
  }
  bool asks_all() const { return rows.empty(); }

  int64_t B, T;
  std::span<const int32_t> tokens, positions, documents, counts, rows, targets;
  std::span<const uint8_t> taught;
  int64_t count;  // targets that count
};

// Throws if the parts of a batch do not fit each other or the vocabulary.
void check_batch(const BatchView&, int64_t vocab);

// The target `by` tokens further than that of each row that a batch asks about, if that row is
// asked about too and belongs to the same sequence; otherwise, and for rows that are not `taught`,
// `out` is left as it is. `positions` are those of all tokens.
void further_targets(std::span<int32_t> out, const BatchView&, std::span<const int32_t> positions,
                     int64_t by);
// How many rows have such a target. Of a batch that asks about all positions these are the targets
// of the op further_tokens.
int64_t count_further_targets(const BatchView&, std::span<const int32_t> positions, int64_t by);

}  // namespace hearth::inline data
