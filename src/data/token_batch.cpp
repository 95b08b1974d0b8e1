#include "data/token_batch.h"

#include <algorithm>

#include "sys/error.h"

namespace hearth::inline data {
namespace {

// No branch in the loop, so that a batch of a hundred thousand takes microseconds.
void expect_below(std::span<const int32_t> ids, int64_t limit, const char* what) {
  bool outside = false;
  for (const int32_t id : ids) outside |= id < 0 || id >= limit;
  if (!outside) return;
  const auto bad = std::ranges::find_if(ids, [&](int32_t id) { return id < 0 || id >= limit; });
  fail("batch", "expected {} below {}, got {}", what, limit, *bad);
}

}  // namespace

void check_batch(const BatchView& b, int64_t vocab) {
  const size_t n = size_t(b.B * b.T);
  const auto fits = [&](std::span<const int32_t> v) { return v.empty() || v.size() == n; };
  if (n == 0 || b.tokens.size() != n || !fits(b.positions) || !fits(b.documents) || !fits(b.counts))
    fail("batch", "expected {} x {} tokens, got {}", b.B, b.T, b.tokens.size());
  if (b.targets.size() != (b.asks_all() ? n : b.rows.size()))
    fail("batch", "expected a target for each row, got {} for {} rows", b.targets.size(),
         b.rows.size());
  if (b.asks_all()) return;  // the loader has checked its tokens
  expect_below(b.rows, int64_t(n), "rows");
  expect_below(b.tokens, vocab, "tokens");
  expect_below(b.targets, vocab, "tokens");
}

void further_targets(std::span<int32_t> out, const BatchView& b, std::span<const int32_t> positions,
                     int64_t by) {
  std::vector<int64_t> asked(b.tokens.size(), -1);  // the index in `rows` of each place
  for (size_t i = 0; i < b.rows.size(); ++i) asked[size_t(b.rows[i])] = int64_t(i);
  for (size_t i = 0; i < b.rows.size(); ++i) {
    const int64_t row = b.rows[i], further = row + by;
    if (row % b.T + by >= b.T || (!b.taught.empty() && !b.taught[i])) continue;
    const int64_t at = asked[size_t(further)];
    if (at >= 0 && positions[size_t(further)] == positions[size_t(row)] + by)
      out[i] = b.targets[size_t(at)];
  }
}

int64_t count_further_targets(const BatchView& b, std::span<const int32_t> positions, int64_t by) {
  if (!b.asks_all()) {
    std::vector<int32_t> targets(b.rows.size(), -1);
    further_targets(targets, b, positions, by);
    return std::ranges::count_if(targets, [](int32_t t) { return t >= 0; });
  }
  int64_t count = 0;
  for (int64_t row = 0; row < b.B * b.T; row += b.T)
    for (int64_t i = row; i + by < row + b.T; ++i)
      count +=
          positions[size_t(i + by)] == positions[size_t(i)] + by && b.targets[size_t(i + by)] >= 0;
  return count;
}

}  // namespace hearth::inline data
