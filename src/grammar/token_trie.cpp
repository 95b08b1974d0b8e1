#include "grammar/token_trie.h"

#include <algorithm>
#include <set>

namespace hearth::inline grammar {
namespace {

constexpr size_t longest_token = 4096;  // bytes; a longer one is never chosen

struct Entry {
  std::string_view bytes;
  int32_t id;
};

std::vector<Entry> text_tokens(const Tokenizer& t) {
  const std::vector<int32_t> special = t.special_ids();
  const std::set<int32_t> left_out(special.begin(), special.end());
  std::vector<Entry> entries;
  for (int32_t id = 0; id < t.vocab_size(); ++id)
    if (t.has(id) && !left_out.contains(id))
      if (const std::string_view b = t.bytes_of(id); !b.empty() && b.size() <= longest_token)
        entries.push_back({b, id});
  std::ranges::sort(entries, [](const Entry& a, const Entry& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.id < b.id;
  });
  return entries;
}

}  // namespace

TokenTrie::TokenTrie(const Tokenizer& tokenizer) : vocab_(tokenizer.vocab_size()) {
  std::vector<int32_t> path;  // nodes from the root to the last one
  std::string_view before;
  const auto close = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back())
      nodes_[size_t(path.back())].end = int32_t(nodes_.size());
  };
  for (const auto& [bytes, id] : text_tokens(tokenizer)) {
    const size_t most = std::min(before.size(), bytes.size());
    size_t same = 0;
    while (same < most && before[same] == bytes[same]) ++same;
    close(same);
    for (size_t i = same; i < bytes.size(); ++i) {
      path.push_back(int32_t(nodes_.size()));
      nodes_.push_back({0, int32_t(tokens_.size()), uint16_t(i + 1), uint8_t(bytes[i])});
    }
    tokens_.push_back(id);
    longest_ = std::max(longest_, bytes.size());
    before = bytes;
  }
  close(0);
  nodes_.push_back({int32_t(nodes_.size()) + 1, int32_t(tokens_.size()), 0, 0});
}

TokenMask TokenTrie::allowed(Automaton& automaton, StateId from, bool strips, int64_t& work) const {
  TokenMask mask{.bits = std::vector<uint32_t>(size_t(vocab_ + 31) / 32, 0)};
  std::vector<StateId> path(longest_ + 1);
  path[0] = from;
  const size_t nodes = nodes_.size() - 1;
  for (size_t i = 0; i < nodes;) {
    const TrieNode& n = nodes_[i];
    const bool stripped = strips && n.depth == 1 && n.byte == ' ';
    const StateId s = stripped ? from : automaton.step(path[n.depth - 1u], n.byte, work);
    if (s == Automaton::dead) {
      i = size_t(n.end);
      continue;
    }
    path[n.depth] = s;
    ++i;
    if (stripped) continue;  // a space alone would be no text at all
    for (int32_t t = n.first_token; t < nodes_[i].first_token; ++t) {
      const auto id = size_t(tokens_[size_t(t)]);
      mask.bits[id / 32] |= 1u << id % 32, mask.any = true;
    }
  }
  return mask;
}

}  // namespace hearth::inline grammar
