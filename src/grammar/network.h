// Network: a grammar compiled to nodes: a nondeterministic automaton over bytes whose nodes may
// call rules. A call returns to the node after it, so parsing needs a stack of such nodes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "grammar/byte_grammar.h"

namespace hearth::inline grammar {

struct NetworkNode {
  enum class Kind : uint8_t { accept, byte, split, call } kind;
  uint8_t low = 0, high = 0;  // byte: the range that it reads
  int32_t next = 0;           // byte, call: the node after it; split: one of two
  int32_t other = 0;          // split: the other one; call: the first node of the rule
  int32_t need = 0;           // frames that the stack needs from here to the end of the rule
};

// The most frames of a stack: how deep an answer may nest. Paths that would need more are not
// taken, so that every path that is taken can end.
constexpr int32_t most_frames = 100;

class Network {
 public:
  // Throws a usage error for a grammar that is too large or that no finite text matches.
  explicit Network(const ByteGrammar&);

  const NetworkNode& operator[](int32_t node) const { return nodes_[size_t(node)]; }
  int32_t start() const { return start_; }
  size_t size() const { return nodes_.size(); }
  const std::string& where() const { return where_; }
  // Bytes that no node tells apart have the same class.
  int class_of(uint8_t byte) const { return class_of_[byte]; }
  int classes() const { return classes_; }

  static constexpr int32_t accept = 0;  // the end of every rule

 private:
  int32_t add(NetworkNode);
  int32_t build(const ByteGrammar&, Phrase, int32_t next);
  int32_t build_repeat(const ByteGrammar&, const GrammarExpr&, int32_t next);
  int32_t call_of(Phrase, int32_t next);
  void measure_needs();
  void divide_bytes();

  std::string where_;
  std::vector<NetworkNode> nodes_;
  std::map<Phrase, int32_t> rule_of_;  // rules by their expression
  std::vector<Phrase> rules_;
  int32_t start_ = 0;
  std::array<uint8_t, 256> class_of_{};
  int classes_ = 0;
};

}  // namespace hearth::inline grammar
