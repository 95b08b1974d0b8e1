// The merge step of byte-level BPE: which token pairs merge, in which order, and merging one word.
// A word takes O(n log n) at worst, so a megabyte of one letter is fine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hearth::inline text {

// (left, right) -> merged token and rank (lower first). Open addressing in one array.
class PairTable {
 public:
  static constexpr uint32_t never = UINT32_MAX;
  struct Entry {
    int32_t left = -1, right = -1;
    uint32_t rank = never;
    int32_t id = -1;
  };

  explicit PairTable(size_t pairs = 0);
  void set(const Entry&);  // a later entry for the same pair replaces the earlier one

  // The entry of the pair; its rank is `never` if there is none.
  const Entry& find(int32_t left, int32_t right) const {
    for (size_t i = slot(left, right);; i = (i + 1) & mask_) {
      const Entry& e = entries_[i];
      if ((e.left == left && e.right == right) || e.left < 0) return e;
    }
  }

 private:
  size_t slot(int32_t left, int32_t right) const {
    const uint64_t key = uint64_t(uint32_t(left)) << 32 | uint32_t(right);
    return size_t(key * 0x9e3779b97f4a7c15ull >> shift_) & mask_;
  }
  std::vector<Entry> entries_;
  size_t mask_ = 0;
  int shift_ = 0;
};

// Merges the symbols of one word in place, lowest rank first and leftmost among equals. Returns the
// number of symbols left at the front.
size_t merge_word(std::span<int32_t> symbols, const PairTable&);

}  // namespace hearth::inline text
