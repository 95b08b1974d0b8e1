// A grammar of uniform choices over templates; samples come with their exact probability.
//
// A template is text with
//   {var=list}        picks a row of a word list, binds it to var, prints its first column
//   {var.col=list}    the same, and prints another column
//   {var=list!other}  never the row bound to `other` (a row of the same list)
//   {var} {var.col}   prints a column of a bound row
//   {:list} {:list.col} {:list!other}  picks and prints without binding
//   <rule>            expands one of the rule's alternatives
//   [a|b|c]           one of these, may be nested
// Variables affect only words, never which choices follow, so expectations are sums over the tree.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hearth::inline tasks {

struct WordList {
  std::vector<std::string> columns;            // names; {var} prints the first
  std::vector<std::vector<std::string>> rows;  // one word per column
};

class Grammar {
 public:
  struct Source {
    std::map<std::string, WordList> lists;
    std::map<std::string, std::vector<std::string>> rules;
    std::string start;
  };
  struct Node;  // of a parsed template
  // Parses every template; throws for an unknown list, rule or column, or an unbound variable.
  explicit Grammar(Source);
  ~Grammar();
  Grammar(const Grammar&) = delete;

  // `pick(n)` returns a uniform number below n. Appends to text and returns -log p.
  double sample(std::string& text, const std::function<uint32_t(uint32_t)>& pick) const;
  // -log p of a text, by parsing; nothing if the grammar cannot produce it.
  std::optional<double> nats(std::string_view text) const;
  // Exact expectations over samples.
  double entropy() const;
  double mean_length() const;

  // Checks that every choice is a prefix code: no text of one alternative is a prefix of a text of
  // another, for any values of the variables. Then a left-to-right reader can identify each choice,
  // and distinct choices produce distinct texts. Returns the ambiguous choice, or nothing if
  // proven. Looks `depth` characters into the alternatives.
  std::optional<std::string> find_ambiguity(size_t depth = 64) const;

 private:
  struct Rules;
  std::unique_ptr<const Rules> rules_;
};

}  // namespace hearth::inline tasks
