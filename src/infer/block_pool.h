// BlockPool: assigns blocks of the paged KV cache to sequences. Blocks are reference-counted. A
// full block without users stays cached, to be found again by its tokens, until its memory is
// needed; the least recently used one goes first.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/kernels.h"

namespace hearth::inline infer {

// One sequence's part of the cache.
struct Pages {
  std::vector<int32_t> blocks = {};  // tokens [64 i, 64 i + 64); -1: released by drop_before()
  int64_t cached = 0;                // tokens whose keys and values are cached
  int64_t named = 0;                 // full blocks that can be found by their tokens
  uint64_t name = 0;                 // name of the last of them; 0: none
};

constexpr int64_t blocks_for(int64_t tokens) { return (tokens + cache_block - 1) / cache_block; }

class BlockPool {
 public:
  // `copy` copies one block of the cache to another.
  BlockPool(int64_t blocks, std::function<void(int32_t from, int32_t to)> copy);

  int64_t size() const { return int64_t(blocks_.size()); }
  int64_t available() const { return int64_t(free_.size() + idle_.size()); }

  // Allocates blocks for tokens [cached, tokens): new blocks, and private copies of shared ones.
  // Returns false if the pool is exhausted; blocks allocated so far are kept. The last `rewritten`
  // cached tokens are written again, so their blocks must not be shared either.
  bool extend(Pages&, int64_t tokens, int64_t rewritten = 0);
  // Gives empty pages the longest cached run of full blocks at the start of `tokens`, up to `limit`
  // tokens.
  void adopt(Pages&, std::span<const int32_t> tokens, int64_t limit);
  // Makes the full cached blocks available to other sequences.
  void name_blocks(Pages&, std::span<const int32_t> tokens);
  Pages fork(const Pages&);                    // shares every block; copy on write
  void drop_before(Pages&, int64_t position);  // releases blocks that end before it
  void release(Pages&);
  void forget();  // drops all cached prefixes: the weights have changed

 private:
  using Tokens = std::span<const int32_t>;
  struct Block {
    int32_t users = 0;
    uint64_t name = 0;    // unique, never reused; 0: cannot be found
    uint64_t parent = 0;  // name of the previous block
    uint64_t hash = 0, idle_since = 0;
    std::array<int32_t, cache_block> tokens;
  };
  int32_t take();  // -1: none left
  void give(int32_t id);
  int32_t find(uint64_t parent, Tokens) const;
  void unname(int32_t id);

  std::vector<Block> blocks_;
  std::vector<int32_t> free_;
  std::map<uint64_t, int32_t> idle_;  // named and unused, ordered by release time
  std::unordered_multimap<uint64_t, int32_t> by_hash_;
  std::function<void(int32_t, int32_t)> copy_;
  uint64_t names_ = 0, clock_ = 0;
};

}  // namespace hearth::inline infer
