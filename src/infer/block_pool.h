// BlockPool: which sequence has which block of the paged KV cache. A block is counted by those who
// use it; a whole one that nobody uses any more is kept, to be found again by the tokens that made
// it, until its place is needed: least recently used first.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/kernels.h"

namespace hearth {

// One sequence's part of the cache.
struct Pages {
  std::vector<int32_t> blocks = {};  // of tokens [64 i, 64 i + 64); -1: given back, see drop_before
  int64_t cached = 0;                // tokens whose keys and values are there
  int64_t named = 0;                 // whole blocks that can be found by their tokens
  uint64_t name = 0;                 // of the last of them; 0: none
};

constexpr int64_t blocks_for(int64_t tokens) { return (tokens + cache_block - 1) / cache_block; }

class BlockPool {
 public:
  // `copy` copies a block of the cache onto another.
  BlockPool(int64_t blocks, std::function<void(int32_t from, int32_t to)> copy);

  int64_t size() const { return int64_t(blocks_.size()); }
  int64_t available() const { return int64_t(free_.size() + idle_.size()); }

  // Makes room for tokens [cached, tokens): new blocks, and own copies of shared ones. False when
  // the pool has no more; what was got so far is kept.
  bool extend(Pages&, int64_t tokens);
  // Gives empty pages the longest run of whole blocks that begin `tokens`, at most `limit` of them.
  void adopt(Pages&, std::span<const int32_t> tokens, int64_t limit);
  // Lets the whole blocks of what is cached be found by others.
  void name_blocks(Pages&, std::span<const int32_t> tokens);
  Pages fork(const Pages&);                    // shares every block; whoever writes first copies
  void drop_before(Pages&, int64_t position);  // blocks that lie before it as a whole
  void release(Pages&);
  void forget();  // nothing can be found any more: the weights have changed

 private:
  using Tokens = std::span<const int32_t>;
  struct Block {
    int32_t users = 0;
    uint64_t name = 0;    // unique, never given twice; 0: cannot be found
    uint64_t parent = 0;  // name of the block before it
    uint64_t hash = 0, idle_since = 0;
    std::array<int32_t, cache_block> tokens;
  };
  int32_t take();  // -1: there is none
  void give(int32_t id);
  int32_t find(uint64_t parent, Tokens) const;
  void unname(int32_t id);

  std::vector<Block> blocks_;
  std::vector<int32_t> free_;
  std::map<uint64_t, int32_t> idle_;  // named and unused, by when that began
  std::unordered_multimap<uint64_t, int32_t> by_hash_;
  std::function<void(int32_t, int32_t)> copy_;
  uint64_t names_ = 0, clock_ = 0;
};

}  // namespace hearth
