#include "infer/block_pool.h"

#include <algorithm>

namespace hearth::inline infer {
namespace {

// A block's name identifies all tokens up to its end, so equal parents and equal tokens mean equal
// prefixes. The hash only finds candidates.
uint64_t hash_of(uint64_t parent, std::span<const int32_t> tokens) {
  uint64_t h = parent * 0x9E3779B97F4A7C15u;
  for (const int32_t t : tokens) {
    h = (h ^ uint32_t(t)) * 0xFF51AFD7ED558CCDu;
    h ^= h >> 32;
  }
  return h;
}

std::span<const int32_t> block_of(std::span<const int32_t> tokens, int64_t i) {
  return tokens.subspan(size_t(i * cache_block), size_t(cache_block));
}

}  // namespace

BlockPool::BlockPool(int64_t blocks, std::function<void(int32_t, int32_t)> copy)
    : blocks_(size_t(blocks)), copy_(std::move(copy)) {
  for (int64_t i = blocks; i-- > 0;) free_.push_back(int32_t(i));
}

int32_t BlockPool::take() {
  if (available() == 0) return -1;
  if (free_.empty()) {
    const int32_t oldest = idle_.begin()->second;
    idle_.erase(idle_.begin());
    unname(oldest);
    free_.push_back(oldest);
  }
  const int32_t id = free_.back();
  free_.pop_back();
  blocks_[size_t(id)].users = 1;
  return id;
}

void BlockPool::give(int32_t id) {
  Block& b = blocks_[size_t(id)];
  if (--b.users > 0) return;
  if (b.name) {
    b.idle_since = ++clock_;
    idle_.emplace(b.idle_since, id);
  } else {
    free_.push_back(id);
  }
}

int32_t BlockPool::find(uint64_t parent, Tokens tokens) const {
  const auto [begin, end] = by_hash_.equal_range(hash_of(parent, tokens));
  for (auto i = begin; i != end; ++i) {
    const Block& b = blocks_[size_t(i->second)];
    if (b.parent == parent && std::ranges::equal(b.tokens, tokens)) return i->second;
  }
  return -1;
}

void BlockPool::unname(int32_t id) {
  Block& b = blocks_[size_t(id)];
  const auto [begin, end] = by_hash_.equal_range(b.hash);
  by_hash_.erase(std::find_if(begin, end, [id](const auto& e) { return e.second == id; }));
  b.name = 0;
}

bool BlockPool::extend(Pages& p, int64_t tokens, int64_t rewritten) {
  for (int64_t i = (p.cached - rewritten) / cache_block; i < blocks_for(tokens); ++i) {
    const bool has = i < int64_t(p.blocks.size());
    if (has && blocks_[size_t(p.blocks[size_t(i)])].users == 1) continue;
    const int32_t id = take();
    if (id < 0) return false;
    if (!has) {
      p.blocks.push_back(id);
      continue;
    }
    copy_(p.blocks[size_t(i)], id);
    give(p.blocks[size_t(i)]);
    p.blocks[size_t(i)] = id;
  }
  return true;
}

void BlockPool::adopt(Pages& p, Tokens tokens, int64_t limit) {
  while ((p.named + 1) * cache_block <= limit) {
    const int32_t id = find(p.name, block_of(tokens, p.named));
    if (id < 0) break;
    Block& b = blocks_[size_t(id)];
    if (b.users++ == 0) idle_.erase(b.idle_since);
    p.blocks.push_back(id);
    p.name = b.name;
    ++p.named;
  }
  p.cached = p.named * cache_block;
}

void BlockPool::name_blocks(Pages& p, Tokens tokens) {
  for (; (p.named + 1) * cache_block <= p.cached; ++p.named) {
    const Tokens own = block_of(tokens, p.named);
    int32_t id = find(p.name, own);
    if (id < 0) {
      id = p.blocks[size_t(p.named)];
      Block& b = blocks_[size_t(id)];
      b.name = ++names_, b.parent = p.name, b.hash = hash_of(p.name, own);
      std::ranges::copy(own, b.tokens.begin());
      by_hash_.emplace(b.hash, id);
    }
    p.name = blocks_[size_t(id)].name;  // an equal block may have been named first
  }
}

Pages BlockPool::fork(const Pages& p) {
  Pages r = p;
  r.blocks.resize(size_t(blocks_for(p.cached)));
  for (const int32_t id : r.blocks)
    if (id >= 0) ++blocks_[size_t(id)].users;
  return r;
}

void BlockPool::drop_before(Pages& p, int64_t position) {
  for (int64_t i = position / cache_block; i-- > 0 && p.blocks[size_t(i)] >= 0;) {
    give(p.blocks[size_t(i)]);
    p.blocks[size_t(i)] = -1;
  }
}

// Releases the last block first: a block can be found only through its predecessors.
void BlockPool::release(Pages& p) {
  for (size_t i = p.blocks.size(); i-- > 0;)
    if (p.blocks[i] >= 0) give(p.blocks[i]);
  p = {};
}

void BlockPool::forget() {
  for (const auto& [since, id] : idle_) free_.push_back(id);
  idle_.clear();
  by_hash_.clear();
  for (Block& b : blocks_) b.name = 0;
}

}  // namespace hearth::inline infer
