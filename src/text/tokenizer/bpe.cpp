#include "text/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "sys/error.h"

namespace hearth::inline text {
namespace {

constexpr size_t short_word = 48;  // up to this length a plain scan is faster than the heap

size_t merge_short(std::span<int32_t> symbols, const PairTable& pairs) {
  const PairTable::Entry* joins[short_word];  // joins[i]: merge of symbols i and i + 1
  size_t n = symbols.size();
  for (size_t i = 0; i + 1 < n; ++i) joins[i] = &pairs.find(symbols[i], symbols[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i)
      if (joins[i]->rank < joins[best]->rank) best = i;
    if (joins[best]->rank == PairTable::never) break;
    symbols[best] = joins[best]->id;
    std::copy(symbols.begin() + long(best) + 2, symbols.begin() + long(n),
              symbols.begin() + long(best) + 1);
    if (best + 2 < n) std::copy(joins + best + 2, joins + n - 1, joins + best + 1);
    --n;
    if (best > 0) joins[best - 1] = &pairs.find(symbols[best - 1], symbols[best]);
    if (best + 1 < n) joins[best] = &pairs.find(symbols[best], symbols[best + 1]);
  }
  return n;
}

// A linked list of symbols and a heap of possible merges, ordered by rank and position. A heap
// entry is stale if the pair at its position now has another rank.
class LongWord {
 public:
  LongWord(std::span<int32_t> symbols, const PairTable& pairs) : symbols_(symbols), pairs_(pairs) {
    const size_t n = symbols.size();
    if (n >= UINT32_MAX)
      fail("tokenizer", "expected words of less than 4 GiB, got one of {} bytes", n);
    next_.resize(n);
    previous_.resize(n);
    rank_.resize(n, PairTable::never);
    heap_.reserve(n);
    for (size_t i = 0; i < n; ++i) {
      next_[i] = uint32_t(i + 1);
      previous_[i] = uint32_t(i) - 1;  // wraps at 0, where it is never read
      if (i + 1 == n) break;
      rank_[i] = pairs.find(symbols[i], symbols[i + 1]).rank;
      if (rank_[i] != PairTable::never) heap_.push_back(uint64_t(rank_[i]) << 32 | i);
    }
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  size_t merge() {
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      const uint64_t top = heap_.back();
      heap_.pop_back();
      const auto at = uint32_t(top);
      if (rank_[at] == uint32_t(top >> 32)) join(at);
    }
    size_t n = 0;
    for (size_t i = 0; i < symbols_.size(); i = next_[i]) symbols_[n++] = symbols_[i];
    return n;
  }

 private:
  void join(uint32_t at) {
    const uint32_t gone = next_[at], after = next_[gone];
    symbols_[at] = pairs_.find(symbols_[at], symbols_[gone]).id;
    rank_[gone] = PairTable::never;
    next_[at] = after;
    if (after < symbols_.size()) previous_[after] = at;
    consider(at);
    if (at > 0) consider(previous_[at]);
  }

  void consider(uint32_t at) {
    const uint32_t right = next_[at];
    rank_[at] = right < symbols_.size() ? pairs_.find(symbols_[at], symbols_[right]).rank
                                        : PairTable::never;
    if (rank_[at] == PairTable::never) return;
    heap_.push_back(uint64_t(rank_[at]) << 32 | at);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  std::span<int32_t> symbols_;
  const PairTable& pairs_;
  std::vector<uint32_t> next_, previous_, rank_;
  std::vector<uint64_t> heap_;
};

}  // namespace

PairTable::PairTable(size_t pairs)
    : entries_(std::bit_ceil(2 * pairs + 2)),
      mask_(entries_.size() - 1),
      shift_(64 - std::countr_zero(entries_.size())) {}

void PairTable::set(const Entry& entry) {
  size_t i = slot(entry.left, entry.right);
  while (entries_[i].left >= 0 &&
         (entries_[i].left != entry.left || entries_[i].right != entry.right))
    i = (i + 1) & mask_;
  entries_[i] = entry;
}

size_t merge_word(std::span<int32_t> symbols, const PairTable& pairs) {
  if (symbols.size() <= short_word) return merge_short(symbols, pairs);
  return LongWord(symbols, pairs).merge();
}

}  // namespace hearth::inline text
