#include "tasks/stories/grammar.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "sys/error.h"

namespace hearth::inline tasks {

// text: literal. pick: a row of a list. refer: a column of a bound row. choice: an alternative.
struct Grammar::Node {
  using Sequence = std::vector<Node>;
  enum class Kind { text, pick, refer, choice } kind;
  std::string text = {};
  const WordList* list = nullptr;
  int variable = -1, exclude = -1;  // -1: none
  size_t column = 0;
  std::shared_ptr<const std::vector<Sequence>> alternatives = {};

  size_t options() const { return list->rows.size() - (exclude >= 0 ? 1 : 0); }
};

struct Grammar::Rules {
  Source source;  // owns the lists that the nodes point to
  Node::Sequence start;
  size_t variables = 0;
};

namespace {

using Node = Grammar::Node;
using Sequence = Node::Sequence;
using Bindings = std::vector<int>;  // row by variable

double mean_word_length(const WordList& list, size_t column) {
  double sum = 0;
  for (const auto& row : list.rows) sum += double(row[column].size());
  return sum / double(list.rows.size());
}

// Turns templates into nodes in one pass from left to right, which is also the order in which
// variables are bound.
struct TemplateParser {
  const Grammar::Source& source;
  std::map<std::string, int> variables = {};
  std::vector<const WordList*> variable_list = {};
  std::vector<std::string> open = {"(start)"};  // rules being expanded
  std::set<int> bound = {};
  std::string_view text = {};
  size_t at = 0;

  [[noreturn]] void error(std::string_view what) const {
    fail("grammar", "expected {} at character {} of rule <{}>, got: {}", what, at, open.back(),
         text);
  }

  std::string until(char end) {
    const size_t close = text.find(end, at);
    if (close == text.npos) error(std::string("a closing ") + end);
    std::string inside(text.substr(at, close - at));
    at = close + 1;
    return inside;
  }

  const WordList& list_named(const std::string& name) const {
    const auto found = source.lists.find(name);
    if (found == source.lists.end() || found->second.rows.empty()) error("a known word list");
    return found->second;
  }

  int bound_variable(const std::string& name) const {
    const auto found = variables.find(name);
    if (found == variables.end() || !bound.count(found->second))
      error("a variable bound before its use");
    return found->second;
  }

  size_t column_named(const WordList& list, const std::string& name) const {
    const auto found = std::find(list.columns.begin(), list.columns.end(), name);
    if (found == list.columns.end()) error("a known column");
    return size_t(found - list.columns.begin());
  }

  // Splits "head<mark>tail": returns the tail (empty without a mark) and leaves the head.
  static std::string cut(std::string& text, char mark) {
    const size_t i = text.find(mark);
    if (i == text.npos) return "";
    std::string tail = text.substr(i + 1);
    text.resize(i);
    return tail;
  }

  Node pick(std::string name, std::string list) {
    Node node{.kind = Node::Kind::pick};
    const std::string exclude = cut(list, '!'), column = cut(name.empty() ? list : name, '.');
    node.list = &list_named(list);
    if (!column.empty()) node.column = column_named(*node.list, column);
    if (!exclude.empty()) {
      node.exclude = bound_variable(exclude);
      if (variable_list[size_t(node.exclude)] != node.list)
        error("an excluded variable of the same list");
    }
    if (name.empty()) return node;
    const auto [it, fresh] = variables.try_emplace(name, int(variables.size()));
    if (fresh) variable_list.push_back(node.list);
    if (variable_list[size_t(it->second)] != node.list) error("one list for a variable");
    if (!bound.insert(it->second).second) error("a variable bound once");
    node.variable = it->second;
    return node;
  }

  Node refer(std::string name) {
    const std::string column = cut(name, '.');
    Node node{.kind = Node::Kind::refer};
    node.variable = bound_variable(name);
    node.list = variable_list[size_t(node.variable)];
    if (!column.empty()) node.column = column_named(*node.list, column);
    return node;
  }

  Node braces() {
    const std::string inside = until('}');
    if (inside.starts_with(':')) return pick("", inside.substr(1));
    const size_t equals = inside.find('=');
    if (equals == inside.npos) return refer(inside);
    return pick(inside.substr(0, equals), inside.substr(equals + 1));
  }

  // After a choice, only variables that every alternative binds are bound.
  struct Branches {
    std::set<int> before, after;
    bool first = true;
    void end_one(std::set<int>& bound) {
      if (std::exchange(first, false)) {
        after = bound;
      } else {
        std::erase_if(after, [&](int v) { return !bound.count(v); });
      }
      bound = before;
    }
  };

  Node brackets() {
    auto alternatives = std::make_shared<std::vector<Sequence>>();
    Branches branches{bound, {}};
    for (char end = '|'; end == '|';) {
      alternatives->push_back(sequence("|]"));
      if (at == text.size()) error("a closing ]");
      end = text[at++];
      branches.end_one(bound);
    }
    bound = branches.after;
    return {.kind = Node::Kind::choice, .alternatives = alternatives};
  }

  // A rule may bind variables, so each use is expanded separately.
  Node rule(const std::string& name) {
    const auto found = source.rules.find(name);
    if (found == source.rules.end() || found->second.empty()) error("a known rule");
    if (std::find(open.begin(), open.end(), name) != open.end()) error("a rule without recursion");
    open.push_back(name);
    const auto outer = std::pair(text, at);
    auto alternatives = std::make_shared<std::vector<Sequence>>();
    Branches branches{bound, {}};
    for (const std::string& alternative : found->second) {
      text = alternative;
      at = 0;
      alternatives->push_back(sequence(""));
      branches.end_one(bound);
    }
    bound = branches.after;
    std::tie(text, at) = outer;
    open.pop_back();
    return {.kind = Node::Kind::choice, .alternatives = alternatives};
  }

  Sequence sequence(std::string_view ends) {
    Sequence nodes;
    while (at < text.size() && ends.find(text[at]) == ends.npos) {
      const char c = text[at];
      if (c == '{' || c == '[' || c == '<') ++at;
      if (c == '{') {
        nodes.push_back(braces());
      } else if (c == '[') {
        nodes.push_back(brackets());
      } else if (c == '<') {
        nodes.push_back(rule(until('>')));
      } else {
        const size_t next = std::min(text.find_first_of("{[<|]", at + 1), text.size());
        nodes.push_back(
            {.kind = Node::Kind::text, .text = std::string(text.substr(at, next - at))});
        at = next;
      }
    }
    return nodes;
  }
};

double sample(const Sequence& nodes, Bindings& rows, std::string& text,
              const std::function<uint32_t(uint32_t)>& pick) {
  double nats = 0;
  for (const Node& n : nodes) {
    switch (n.kind) {
      case Node::Kind::text:
        text += n.text;
        break;
      case Node::Kind::refer:
        text += n.list->rows[size_t(rows[size_t(n.variable)])][n.column];
        break;
      case Node::Kind::pick: {
        int row = int(pick(uint32_t(n.options())));
        if (n.exclude >= 0 && row >= rows[size_t(n.exclude)]) ++row;
        if (n.variable >= 0) rows[size_t(n.variable)] = row;
        text += n.list->rows[size_t(row)][n.column];
        nats += std::log(double(n.options()));
        break;
      }
      case Node::Kind::choice: {
        const size_t k = n.alternatives->size();
        nats += std::log(double(k));
        nats += sample((*n.alternatives)[k > 1 ? pick(uint32_t(k)) : 0], rows, text, pick);
        break;
      }
    }
  }
  return nats;
}

struct Expectation {
  double nats = 0, length = 0;
};

// A variable's row is uniform over its list (an exclusion preserves that by symmetry) and
// independent of the chosen alternatives, so lengths add up too.
Expectation expect(const Sequence& nodes) {
  Expectation sum;
  for (const Node& n : nodes) {
    switch (n.kind) {
      case Node::Kind::text:
        sum.length += double(n.text.size());
        break;
      case Node::Kind::refer:
        sum.length += mean_word_length(*n.list, n.column);
        break;
      case Node::Kind::pick:
        sum.length += mean_word_length(*n.list, n.column);
        sum.nats += std::log(double(n.options()));
        break;
      case Node::Kind::choice: {
        const double k = double(n.alternatives->size());
        sum.nats += std::log(k);
        for (const Sequence& a : *n.alternatives) {
          const Expectation e = expect(a);
          sum.nats += e.nats / k;
          sum.length += e.length / k;
        }
        break;
      }
    }
  }
  return sum;
}

// Parses one sequence at the start of `text`. Every choice is a prefix code, so at most one
// alternative fits, and the first that fits is the right one.
std::optional<double> parse(const Sequence& nodes, Bindings& rows, std::string_view& text) {
  double nats = 0;
  const auto take = [&](const std::string& word) {
    if (!text.starts_with(word)) return false;
    text.remove_prefix(word.size());
    return true;
  };
  const auto take_row = [&](const Node& n) {
    for (size_t r = 0; r < n.list->rows.size(); ++r) {
      if (n.exclude >= 0 && int(r) == rows[size_t(n.exclude)]) continue;
      if (!take(n.list->rows[r][n.column])) continue;
      if (n.variable >= 0) rows[size_t(n.variable)] = int(r);
      nats += std::log(double(n.options()));
      return true;
    }
    return false;
  };
  const auto take_alternative = [&](const Node& n) {
    for (const Sequence& a : *n.alternatives) {
      Bindings inner = rows;
      std::string_view rest = text;
      if (const auto e = parse(a, inner, rest)) {
        rows = std::move(inner);
        text = rest;
        nats += std::log(double(n.alternatives->size())) + *e;
        return true;
      }
    }
    return false;
  };
  for (const Node& n : nodes) {
    bool fits = false;
    switch (n.kind) {
      case Node::Kind::text:
        fits = take(n.text);
        break;
      case Node::Kind::refer:
        fits = take(n.list->rows[size_t(rows[size_t(n.variable)])][n.column]);
        break;
      case Node::Kind::pick:
        fits = take_row(n);
        break;
      case Node::Kind::choice:
        fits = take_alternative(n);
        break;
    }
    if (!fits) return std::nullopt;
  }
  return nats;
}

using Openings = std::set<std::string>;

// Every text that the nodes can produce, cut at `depth`, plus some that they cannot, because
// variables are treated as free.
Openings openings(const Sequence& nodes, size_t depth);

Openings openings(const Node& n, size_t depth) {
  Openings all;
  if (n.kind == Node::Kind::text) {
    all.insert(n.text.substr(0, depth));
  } else if (n.kind == Node::Kind::choice) {
    for (const Sequence& a : *n.alternatives) all.merge(openings(a, depth));
  } else {
    for (const auto& row : n.list->rows) all.insert(row[n.column].substr(0, depth));
  }
  return all;
}

Openings openings(const Sequence& nodes, size_t depth) {
  Openings all = {""};
  for (const Node& n : nodes) {
    Openings longer;
    bool grew = false;
    for (const std::string& head : all) {
      if (head.size() == depth) {
        longer.insert(head);
        continue;
      }
      grew = true;
      for (const std::string& tail : openings(n, depth - head.size())) longer.insert(head + tail);
    }
    all = std::move(longer);
    if (!grew) break;
  }
  return all;
}

// Two texts from different alternatives, one of which is a prefix of the other.
std::optional<std::pair<std::string, std::string>> find_clash(const std::vector<Openings>& sets) {
  std::vector<std::pair<std::string, size_t>> sorted;
  for (size_t i = 0; i < sets.size(); ++i)
    for (const std::string& s : sets[i]) sorted.emplace_back(s, i);
  std::sort(sorted.begin(), sorted.end());
  std::vector<const std::pair<std::string, size_t>*> begun;  // each is a prefix of the next
  for (const auto& item : sorted) {
    while (!begun.empty() && !item.first.starts_with(begun.back()->first)) begun.pop_back();
    for (const auto* b : begun)
      if (b->second != item.second) return std::pair(b->first, item.first);
    begun.push_back(&item);
  }
  return std::nullopt;
}

std::optional<std::string> find_ambiguity_in(const Sequence& nodes, size_t depth) {
  for (const Node& n : nodes) {
    if (n.kind == Node::Kind::pick) {
      std::vector<Openings> words;
      for (const auto& row : n.list->rows) words.push_back({row[n.column]});
      if (const auto clash = find_clash(words))
        return fmt::format("words \"{}\" and \"{}\"", clash->first, clash->second);
    }
    if (n.kind != Node::Kind::choice) continue;
    std::optional<std::pair<std::string, std::string>> clash;
    for (size_t d = std::min<size_t>(depth, 4);; d = std::min(depth, 2 * d)) {
      std::vector<Openings> sets;
      for (const Sequence& a : *n.alternatives) sets.push_back(openings(a, d));
      clash = find_clash(sets);
      // A clash of texts that are not cut is a clash at any depth.
      if (!clash || clash->first.size() < d || d == depth) break;
    }
    if (clash) return fmt::format("alternatives \"{}\" and \"{}\"", clash->first, clash->second);
    for (const Sequence& a : *n.alternatives)
      if (auto inner = find_ambiguity_in(a, depth)) return inner;
  }
  return std::nullopt;
}

}  // namespace

Grammar::Grammar(Source source) {
  auto rules = std::make_unique<Rules>();
  rules->source = std::move(source);
  for (const auto& [name, list] : rules->source.lists)
    for (const auto& row : list.rows)
      if (row.size() != list.columns.size())
        fail("grammar", "expected {} words per row in list {}, got {}", list.columns.size(), name,
             row.size());
  TemplateParser parser{.source = rules->source};
  rules->start.push_back(parser.rule(rules->source.start));
  rules->variables = parser.variables.size();
  rules_ = std::move(rules);
}

Grammar::~Grammar() = default;

double Grammar::sample(std::string& text, const std::function<uint32_t(uint32_t)>& pick) const {
  Bindings rows(rules_->variables, -1);
  return hearth::sample(rules_->start, rows, text, pick);
}

std::optional<double> Grammar::nats(std::string_view text) const {
  Bindings rows(rules_->variables, -1);
  const auto found = parse(rules_->start, rows, text);
  return text.empty() ? found : std::nullopt;
}

double Grammar::entropy() const { return expect(rules_->start).nats; }
double Grammar::mean_length() const { return expect(rules_->start).length; }

std::optional<std::string> Grammar::find_ambiguity(size_t depth) const {
  return find_ambiguity_in(rules_->start, depth);
}

}  // namespace hearth::inline tasks
