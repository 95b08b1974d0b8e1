#include "text/tokenizer/words.h"

#include <bit>

namespace hearth::inline text {

WordTable::WordTable(size_t words)
    : entries_(std::bit_ceil(2 * words + 2)), mask_(entries_.size() - 1) {}

void WordTable::set(std::string_view word, int32_t id) {
  const WordKey key(word, word.data() + word.size());
  size_t i = key.hash & mask_;
  while (entries_[i].length != 0) i = (i + 1) & mask_;
  entries_[i] = {key.part[0], key.part[1], uint32_t(key.length), id};
}

// All payload loads acquire and all stores release: a reader that saw any word of a later writer
// also sees that writer's odd version when it checks again.
size_t WordCache::find(const WordKey& key, std::array<int32_t, most_ids>& ids) const {
  constexpr auto acquire = std::memory_order_acquire;
  const Slot& slot = slots_[key.hash >> 8 & (slots - 1)];
  const uint64_t version = slot.version.load(acquire);
  const uint64_t shape = slot.shape.load(acquire);
  if (version & 1 || shape >> 8 != key.length) return 0;
  for (size_t i = 0; i < 4; ++i)
    if (slot.key[i].load(acquire) != key.part[i]) return 0;
  const size_t n = shape & 0xff;
  for (size_t i = 0; i < (n + 1) / 2; ++i) {
    const uint64_t two = slot.ids[i].load(acquire);
    ids[2 * i] = int32_t(uint32_t(two));
    ids[2 * i + 1] = int32_t(uint32_t(two >> 32));
  }
  return slot.version.load(acquire) == version ? n : 0;
}

void WordCache::put(const WordKey& key, std::span<const int32_t> ids) {
  constexpr auto release = std::memory_order_release;
  Slot& slot = slots_[key.hash >> 8 & (slots - 1)];
  uint64_t version = slot.version.load(std::memory_order_relaxed);
  if (version & 1 ||
      !slot.version.compare_exchange_strong(version, version + 1, std::memory_order_acq_rel))
    return;  // another thread is writing the slot
  slot.shape.store(uint64_t(key.length) << 8 | ids.size(), release);
  for (size_t i = 0; i < 4; ++i) slot.key[i].store(key.part[i], release);
  for (size_t i = 0; i < ids.size(); i += 2) {
    const uint64_t high = i + 1 < ids.size() ? uint32_t(ids[i + 1]) : 0;
    slot.ids[i / 2].store(high << 32 | uint32_t(ids[i]), release);
  }
  slot.version.store(version + 2, release);
}

}  // namespace hearth::inline text
