#include "grammar/string_match.h"

#include <algorithm>

#include "grammar/regex_phrase.h"
#include "sys/error.h"

namespace hearth::inline grammar {
namespace {

constexpr size_t most_pattern_states = 20'000;  // of one expression
constexpr size_t most_product = 50'000;         // states of the product
constexpr int64_t unlimited = 1'000'000'000;

// The automaton of one expression. A node reads a code point of a set, or splits, or accepts.
class CodeAutomaton {
 public:
  CodeAutomaton(const std::string& where, const std::string& pattern) : grammar_(where) {
    const auto leaf = [this](const CodeSet& set) {
      const Phrase p = grammar_.text("");
      set_of_[p] = set;
      return p;
    };
    const Phrase all = search_regex(grammar_, pattern, leaf);
    lengths_ = lengths(all);
    nodes_.push_back({});  // accepts
    start_ = build(all, 0);
  }

  // A set to read, and the node after it.
  struct Edge {
    const CodeSet* set;
    int32_t next;
  };
  struct Closure {
    std::vector<Edge> edges = {};
    bool accepts = false;
  };
  // What can be read at a node.
  const Closure& at(int32_t node) {
    const auto [found, fresh] = closures_.try_emplace(node);
    if (!fresh) return found->second;
    std::vector<int32_t> pending{node};
    std::vector<char> seen(nodes_.size(), false);
    while (!pending.empty()) {
      const int32_t i = pending.back();
      pending.pop_back();
      if (std::exchange(seen[size_t(i)], char(true))) continue;
      const Node& n = nodes_[size_t(i)];
      if (n.set)
        found->second.edges.push_back({n.set, n.next});
      else if (i == 0)
        found->second.accepts = true;
      else
        pending.push_back(n.next), pending.push_back(n.other);
    }
    return found->second;
  }
  int32_t start() const { return start_; }
  std::pair<int64_t, int64_t> lengths() const { return lengths_; }  // least and most code points

 private:
  struct Node {
    const CodeSet* set = nullptr;
    int32_t next = -1, other = -1;
  };

  std::pair<int64_t, int64_t> lengths(Phrase p) const {
    const GrammarExpr& e = grammar_.at(p);
    if (set_of_.contains(p)) return {1, 1};
    std::pair<int64_t, int64_t> all{0, 0};
    const bool choice = e.kind == GrammarExpr::Kind::choice;
    if (choice) all.first = unlimited;
    for (const Phrase part : e.parts) {
      auto [least, most] = lengths(part);
      if (e.kind == GrammarExpr::Kind::repeat) {
        least *= e.least;
        most = e.most < 0 && most > 0 ? unlimited : most * std::max<int64_t>(e.most, 0);
      }
      all.first = std::min(unlimited, choice ? std::min(all.first, least) : all.first + least);
      all.second = std::min(unlimited, choice ? std::max(all.second, most) : all.second + most);
    }
    return all;
  }

  int32_t add(Node n) {
    if (nodes_.size() >= most_pattern_states)
      fail_usage(grammar_.where(),
                 "expected a pattern of at most {} states beside other keywords of a string",
                 most_pattern_states);
    nodes_.push_back(n);
    return int32_t(nodes_.size() - 1);
  }

  // The first node of an expression that continues at `next`.
  int32_t build(Phrase p, int32_t next) {
    if (const auto set = set_of_.find(p); set != set_of_.end())
      return add({&set->second, next, -1});
    const GrammarExpr& e = grammar_.at(p);
    if (e.kind == GrammarExpr::Kind::sequence)
      for (size_t i = e.parts.size(); i-- > 0;) next = build(e.parts[i], next);
    if (e.kind == GrammarExpr::Kind::choice) {
      int32_t all = build(e.parts.back(), next);
      for (size_t i = e.parts.size() - 1; i-- > 0;)
        all = add({nullptr, build(e.parts[i], next), all});
      return all;
    }
    if (e.kind != GrammarExpr::Kind::repeat) return next;
    int32_t begin = next;
    if (e.most < 0) {
      begin = add({nullptr, next, next});
      const int32_t first = build(e.parts[0], begin);
      nodes_[size_t(begin)].other = first;
    }
    for (int64_t i = e.least; i < e.most; ++i)
      begin = add({nullptr, build(e.parts[0], begin), next});
    for (int64_t i = 0; i < e.least; ++i) begin = build(e.parts[0], begin);
    return begin;
  }

  ByteGrammar grammar_;
  std::map<Phrase, CodeSet> set_of_;
  std::vector<Node> nodes_;
  std::map<int32_t, Closure> closures_;
  std::pair<int64_t, int64_t> lengths_;
  int32_t start_ = 0;
};

// The states of the product become rules, each of which is the rest of the string.
class Product {
 public:
  Product(ByteGrammar& g, JsonPhrases& json, std::vector<CodeAutomaton>& parts,
          const StringMatch& m)
      : grammar_(g), json_(json), parts_(parts), least_(m.least), most_(m.most) {}

  Phrase whole() {
    State start;
    for (const CodeAutomaton& a : parts_) start.nodes.push_back(a.start());
    const Phrase first = rest(std::move(start));
    while (!pending_.empty()) {
      const auto state = pending_.back();
      pending_.pop_back();
      define(*state);
    }
    return first;
  }

 private:
  struct State {
    std::vector<int32_t> nodes = {};
    int64_t count = 0;  // code points so far, as far as they matter
    auto operator<=>(const State&) const = default;
  };
  using Rules = std::map<State, RuleId>;

  Phrase rest(State s) {
    const auto [at, fresh] = rules_.try_emplace(std::move(s), -1);
    if (fresh) {
      if (rules_.size() > most_product)
        fail_usage(grammar_.where(),
                   "pattern, format and lengths of this string need an automaton of more than {} "
                   "states together: lower maxLength or minLength, or state them in the pattern",
                   most_product);
      at->second = grammar_.new_rule();
      pending_.push_back(at);
    }
    return grammar_.call(at->second);
  }

  void define(const Rules::value_type& rule) {
    const State& s = rule.first;
    std::vector<Phrase> ways;
    bool accepts = s.count >= least_;
    for (size_t i = 0; i < parts_.size(); ++i) accepts &= parts_[i].at(s.nodes[i]).accepts;
    if (accepts) ways.push_back(grammar_.text(""));
    const int64_t most = most_ < 0 ? least_ : most_;
    State next{.count = std::min(s.count + 1, most)};
    if (most_ < 0 || s.count < most_) add_edges(s, nullptr, next, ways);
    // A rule that only calls itself matches nothing.
    grammar_.define(rule.second,
                    ways.empty() ? grammar_.call(rule.second) : grammar_.choice(std::move(ways)));
  }

  // The ways to read a code point that is in `set` (null: any) and that the automata from the one
  // after next.nodes on can read as well.
  void add_edges(const State& s, const CodeSet* set, State& next, std::vector<Phrase>& ways) {
    const size_t i = next.nodes.size();
    if (i == parts_.size()) {
      ways.push_back(grammar_.sequence({written(*set), rest(next)}));
      return;
    }
    for (const auto& edge : parts_[i].at(s.nodes[i]).edges) {
      const CodeSet& both = set ? common(*set, *edge.set) : *edge.set;
      if (both.empty()) continue;
      next.nodes.push_back(edge.next);
      add_edges(s, &both, next, ways);
      next.nodes.pop_back();
    }
  }

  const CodeSet& common(const CodeSet& a, const CodeSet& b) {
    const auto [at, fresh] = common_.try_emplace({&a, &b});
    if (fresh) at->second = a.without(b.complement());
    return at->second;
  }

  // The sets live as long as the automata or as common_, so their places name them.
  Phrase written(const CodeSet& set) {
    const auto [at, fresh] = written_.try_emplace(&set, -1);
    if (fresh) at->second = json_.written(set);
    return at->second;
  }

  ByteGrammar& grammar_;
  JsonPhrases& json_;
  std::vector<CodeAutomaton>& parts_;
  const int64_t least_, most_;
  Rules rules_;
  std::vector<Rules::iterator> pending_;
  std::map<std::pair<const CodeSet*, const CodeSet*>, CodeSet> common_;
  std::map<const CodeSet*, Phrase> written_;
};

}  // namespace

Phrase matching_string(ByteGrammar& g, JsonPhrases& json, const StringMatch& asked) {
  StringMatch m = asked;
  std::vector<CodeAutomaton> parts;
  int64_t least = 0, most = unlimited;
  for (const std::string& pattern : m.patterns) {
    parts.emplace_back(g.where(), pattern);
    least = std::max(least, parts.back().lengths().first);
    most = std::min(most, parts.back().lengths().second);
  }
  if (std::max(least, m.least) > std::min(most, m.most < 0 ? unlimited : m.most))
    fail_usage(g.where(), "no string has the pattern or format and the length");
  // A length that the expressions give anyway needs no counting.
  if (m.least <= least) m.least = 0;
  if (m.most >= most) m.most = -1;
  if (parts.size() == 1 && m.least == 0 && m.most < 0) {
    const auto write = [&json](const CodeSet& set) { return json.written(set); };
    return json.quoted(g.call(g.rule_of(search_regex(g, m.patterns[0], write))));
  }
  return json.quoted(Product(g, json, parts, m).whole());
}

}  // namespace hearth::inline grammar
