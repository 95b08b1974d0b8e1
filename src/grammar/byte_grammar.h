// ByteGrammar: a language over bytes, written as expressions and rules. Rules may call each other
// and themselves, which is how JSON nests. Regular expressions and JSON schemas become grammars.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/code_set.h"

namespace hearth::inline grammar {

// An expression of a grammar, by its place in the grammar's list.
using Phrase = int32_t;
using RuleId = int32_t;

struct GrammarExpr {
  enum class Kind : uint8_t { text, byte, sequence, choice, repeat, call } kind;
  std::string text = {};           // text: its bytes
  uint8_t low = 0, high = 0;       // byte: the range
  std::vector<Phrase> parts = {};  // sequence, choice; repeat: one
  int64_t least = 0, most = 0;     // repeat; most -1: unlimited
  RuleId rule = -1;                // call
  int32_t depth = 1;               // nesting of expressions
};

class ByteGrammar {
 public:
  explicit ByteGrammar(std::string where) : where_(std::move(where)) {}  // names it in errors

  Phrase text(std::string_view bytes);
  Phrase byte(uint8_t low, uint8_t high);
  Phrase set(const CodeSet&);  // one code point of the set, in UTF-8
  Phrase sequence(std::vector<Phrase>);
  Phrase choice(std::vector<Phrase>);  // at least one
  Phrase repeat(Phrase, int64_t least, int64_t most);
  Phrase optional(Phrase p) { return repeat(p, 0, 1); }
  Phrase call(RuleId);
  // One of several texts, with common beginnings shared.
  Phrase one_of(std::vector<std::string> texts);

  RuleId new_rule();
  void define(RuleId, Phrase);
  RuleId rule_of(Phrase p);  // a new rule for it
  void set_root(Phrase p) { root_ = p; }

  const std::string& where() const { return where_; }
  const GrammarExpr& at(Phrase p) const { return exprs_[size_t(p)]; }
  Phrase rule(RuleId r) const { return rules_[size_t(r)]; }
  size_t rules() const { return rules_.size(); }
  Phrase root() const { return root_; }

 private:
  Phrase add(GrammarExpr);
  Phrase one_of_sorted(std::vector<std::string>& texts, size_t begin, size_t end, size_t skip);

  std::string where_;
  std::vector<GrammarExpr> exprs_;
  std::vector<Phrase> rules_;
  std::map<CodeSet, RuleId> sets_;
  std::map<std::pair<uint8_t, uint8_t>, Phrase> bytes_;
  Phrase root_ = -1;
};

// The most times that a counted repetition may repeat.
constexpr int64_t most_repeats = 10000;

}  // namespace hearth::inline grammar
