// Maps words to ids without merging: WordTable holds the words that are one token (most of any
// text); WordCache remembers the ids of others in bounded memory shared by all threads.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace hearth::inline text {

// The bytes of a short word as integers, zero-padded (so a key is unique only with its length).
struct WordKey {
  static constexpr size_t longest = 32;
  std::array<uint64_t, 4> part{};
  size_t length;
  uint64_t hash;

  // `limit` is the end of the readable text: bytes after the word are read and masked off.
  WordKey(std::string_view word, const char* limit) : length(word.size()) {
    const char* p = word.data();
    if (length <= 16 && limit - p >= 16) {
      std::memcpy(part.data(), p, 16);
      if (length <= 8) {
        part[0] &= ~uint64_t(0) >> (64 - 8 * length);
        part[1] = 0;
      } else {
        part[1] &= ~uint64_t(0) >> (128 - 8 * length);
      }
    } else {
      std::memcpy(part.data(), p, length);
    }
    uint64_t h = (part[0] ^ length) * 0x9e3779b97f4a7c15ull;
    h = (h ^ h >> 32 ^ part[1]) * 0xd6e8feb86659fd93ull;
    if (length > 16) {
      h = (h ^ h >> 32 ^ part[2]) * 0x9e3779b97f4a7c15ull;
      h = (h ^ h >> 32 ^ part[3]) * 0xd6e8feb86659fd93ull;
    }
    hash = h ^ h >> 32;
  }
};

// Words of at most 16 bytes that are one token.
class WordTable {
 public:
  static constexpr size_t longest = 16;
  explicit WordTable(size_t words = 0);
  void set(std::string_view word, int32_t id);

  // -1: not found. The key's length must be at most `longest`.
  int32_t find(const WordKey& key) const {
    for (size_t i = key.hash & mask_;; i = (i + 1) & mask_) {
      const Entry& e = entries_[i];
      if (e.low == key.part[0] && e.high == key.part[1] && e.length == key.length) return e.id;
      if (e.length == 0) return -1;
    }
  }

 private:
  struct Entry {
    uint64_t low = 0, high = 0;
    uint32_t length = 0;
    int32_t id = -1;
  };
  std::vector<Entry> entries_;
  size_t mask_ = 0;
};

// One slot per hash; the newest word wins. A slot is a sequence lock made of atomics: a reader that
// overlaps a writer sees a changed version and reports a miss.
class WordCache {
 public:
  static constexpr size_t most_ids = 20;
  WordCache() : slots_(std::make_unique<Slot[]>(slots)) {}

  // The number of ids written to `ids`; 0: a miss.
  size_t find(const WordKey&, std::array<int32_t, most_ids>& ids) const;
  void put(const WordKey&, std::span<const int32_t> ids);

 private:
  static constexpr size_t slots = 1 << 15;  // 4 MiB
  struct alignas(64) Slot {
    std::atomic<uint64_t> version{0};  // odd while a writer is active
    std::atomic<uint64_t> shape{0};    // word length << 8 | number of ids
    std::array<std::atomic<uint64_t>, 4> key{};
    std::array<std::atomic<uint64_t>, most_ids / 2> ids{};
  };
  std::unique_ptr<Slot[]> slots_;
};

}  // namespace hearth::inline text
