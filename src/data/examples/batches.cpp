#include "data/examples/batches.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "core/program_cache.h"
#include "data/permutation.h"
#include "sys/error.h"

namespace hearth::inline data {

std::vector<std::vector<size_t>> pack_best_fit(std::span<const int64_t> sizes, int64_t room) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater{}, [&](size_t i) { return sizes[i]; });
  std::vector<std::vector<size_t>> rows;
  std::set<std::pair<int64_t, size_t>> open;  // (room left, row)
  for (const size_t i : order) {
    if (sizes[i] > room) fail("packing", "expected at most {} places, got {}", room, sizes[i]);
    const auto best = open.lower_bound({sizes[i], 0});
    size_t row = rows.size();
    int64_t left = room;
    if (best == open.end()) {
      rows.emplace_back();
    } else {
      std::tie(left, row) = *best;
      open.erase(best);
    }
    rows[row].push_back(i);
    open.insert({left - sizes[i], row});
  }
  return rows;
}

TokenBatch lay_out(std::span<const std::vector<const Example*>> rows, int64_t T, bool documents,
                   int64_t B) {
  TokenBatch b{.B = std::max(int64_t(rows.size()), B), .T = T};
  const size_t n = size_t(b.B * T);
  b.tokens.assign(n, 0), b.positions.assign(n, 0), b.counts.assign(n, 0);
  if (documents) b.documents.assign(n, 0);
  for (size_t r = 0; r < rows.size(); ++r) {
    int64_t at = int64_t(r) * T;
    const int64_t end = at + T;
    int32_t document = 0;
    for (const Example* e : rows[r]) {
      const int64_t places = places_of(*e);
      if (at + places > end) fail("packing", "expected rows of at most {} places, got more", T);
      for (int64_t i = 0; i < places; ++i, ++at) {
        b.tokens[size_t(at)] = e->tokens[size_t(i)];
        b.positions[size_t(at)] = int32_t(i);
        b.counts[size_t(at)] = 1;
        if (documents) b.documents[size_t(at)] = document;
        if (!e->learned[size_t(i) + 1]) continue;
        b.rows.push_back(int32_t(at));
        b.targets.push_back(e->tokens[size_t(i) + 1]);
      }
      ++document;
    }
    for (; documents && at < end; ++at) b.documents[size_t(at)] = document;
  }
  return b;
}

int64_t common_length(std::span<const std::vector<const Example*>> rows, int64_t max_length,
                      bool few) {
  int64_t longest = 1;
  for (const auto& row : rows)
    for (const Example* e : row) longest = std::max(longest, places_of(*e));
  return bucket(longest, few ? buckets::few_text_tokens : buckets::text_tokens, max_length);
}

TokenBatch lay_out_pairs(std::span<const Preference* const> pairs, int64_t max_length, bool few) {
  std::vector<std::vector<const Example*>> rows;
  for (const Preference* p : pairs) rows.push_back({&p->chosen}), rows.push_back({&p->rejected});
  TokenBatch b = lay_out(rows, common_length(rows, max_length, few), false);
  for (const Preference* p : pairs) {
    b.taught.insert(b.taught.end(), size_t(learned_tokens(p->chosen)), 1);
    b.taught.insert(b.taught.end(), size_t(learned_tokens(p->rejected)), 0);
  }
  return b;
}

std::vector<size_t> StepOrder::of(int64_t step) const {
  const int64_t per_epoch = steps_per_epoch();
  const Permutation order(items, seed, uint64_t(step / per_epoch));
  const uint64_t begin = uint64_t(step % per_epoch) * per_step;
  std::vector<size_t> chosen;
  for (uint64_t i = begin; i < std::min(items, begin + per_step); ++i)
    chosen.push_back(size_t(order(i)));
  return chosen;
}

Split split_off(size_t n, double share, uint64_t seed) {
  constexpr uint64_t salt = 0x8e1d0a7;  // differs from every epoch number
  const size_t held = share > 0 ? std::max<size_t>(1, size_t(std::llround(share * double(n)))) : 0;
  if (held > 0 && n < 2)
    fail("--holdout", "expected at least 2 examples to hold one of them out, got {}", n);
  if (held > 0 && held >= n)
    fail("--holdout",
         "a fraction of {} of {} examples leaves none to train on; the largest that leaves one is "
         "{}",
         share, n, double((n - 1) * 10000 / n) / 1e4);  // rounded down
  const Permutation order(n, seed, salt);
  Split s;
  for (size_t i = 0; i < n; ++i) (i < held ? s.held : s.rest).push_back(size_t(order(i)));
  // Back to the order of the data, as a reader would expect.
  std::ranges::sort(s.held);
  std::ranges::sort(s.rest);
  return s;
}

}  // namespace hearth::inline data
