// TokenTrie: the tokens of a vocabulary by their bytes. Walking it with an automaton gives the
// tokens that may come next, in one pass over shared beginnings.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "grammar/automaton.h"
#include "text/tokenizer/tokenizer.h"

namespace hearth::inline grammar {

// One bit per token: whether it may come next.
struct TokenMask {
  std::vector<uint32_t> bits;
  bool any = false;

  bool has(int32_t token) const { return bits[size_t(token) / 32] >> (token % 32) & 1; }
};

class TokenTrie {
 public:
  // Special tokens are left out: they are no text.
  explicit TokenTrie(const Tokenizer&);

  // The tokens whose bytes the automaton can read from a state. `strips`: one space at the start of
  // a token is not part of the text. `work`: as in Automaton::step.
  TokenMask allowed(Automaton&, StateId, bool strips, int64_t& work) const;
  int64_t vocab() const { return vocab_; }

 private:
  // In depth-first order; the subtree of node i is [i, nodes_[i].end).
  struct TrieNode {
    int32_t end, first_token;
    uint16_t depth;
    uint8_t byte;
  };
  int64_t vocab_;
  size_t longest_ = 0;
  std::vector<TrieNode> nodes_;
  std::vector<int32_t> tokens_;  // of node i: from its first_token to that of node i + 1
};

}  // namespace hearth::inline grammar
