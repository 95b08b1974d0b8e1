#include "grammar/byte_grammar.h"

#include <algorithm>

#include "sys/error.h"

namespace hearth::inline grammar {
namespace {

constexpr size_t most_exprs = 400'000;
constexpr int32_t most_depth = 600;  // of nested expressions, because compiling recurses

}  // namespace

Phrase ByteGrammar::add(GrammarExpr e) {
  for (const Phrase p : e.parts) e.depth = std::max(e.depth, at(p).depth + 1);
  if (e.depth > most_depth)
    fail_usage(where_, "expected at most {} nested parts, got more", most_depth);
  if (exprs_.size() >= most_exprs)
    fail_usage(where_, "expected a grammar of at most {} parts, got more", most_exprs);
  exprs_.push_back(std::move(e));
  return Phrase(exprs_.size() - 1);
}

Phrase ByteGrammar::text(std::string_view bytes) {
  return add({.kind = GrammarExpr::Kind::text, .text = std::string(bytes)});
}

Phrase ByteGrammar::byte(uint8_t low, uint8_t high) {
  const auto [at, fresh] = bytes_.try_emplace({low, high}, -1);
  if (fresh) at->second = add({.kind = GrammarExpr::Kind::byte, .low = low, .high = high});
  return at->second;
}

Phrase ByteGrammar::set(const CodeSet& set) {
  const auto found = sets_.find(set);
  if (found != sets_.end()) return call(found->second);
  std::vector<Phrase> forms;
  size_t bytes = 0;
  for (const ByteRanges& form : utf8_ranges(set)) {
    std::vector<Phrase> parts;
    for (const auto& [low, high] : form) parts.push_back(byte(low, high));
    bytes += parts.size();
    forms.push_back(sequence(std::move(parts)));
  }
  if (forms.empty()) fail_usage(where_, "a character class matches no character");
  const Phrase p = choice(std::move(forms));
  if (bytes <= 2) return p;
  return call(sets_[set] = rule_of(p));  // a rule, so that every use of the class is small
}

Phrase ByteGrammar::sequence(std::vector<Phrase> parts) {
  if (parts.size() == 1) return parts[0];
  return add({.kind = GrammarExpr::Kind::sequence, .parts = std::move(parts)});
}

Phrase ByteGrammar::choice(std::vector<Phrase> parts) {
  if (parts.size() == 1) return parts[0];
  return add({.kind = GrammarExpr::Kind::choice, .parts = std::move(parts)});
}

Phrase ByteGrammar::repeat(Phrase p, int64_t least, int64_t most) {
  if (least > most_repeats || most > most_repeats)
    fail_usage(where_, "expected at most {} repetitions, got {}", most_repeats,
               std::max(least, most));
  return add({.kind = GrammarExpr::Kind::repeat, .parts = {p}, .least = least, .most = most});
}

Phrase ByteGrammar::call(RuleId rule) {
  return add({.kind = GrammarExpr::Kind::call, .rule = rule});
}

RuleId ByteGrammar::new_rule() {
  rules_.push_back(-1);
  return RuleId(rules_.size() - 1);
}

void ByteGrammar::define(RuleId rule, Phrase p) { rules_[size_t(rule)] = p; }

RuleId ByteGrammar::rule_of(Phrase p) {
  const RuleId r = new_rule();
  define(r, p);
  return r;
}

Phrase ByteGrammar::one_of(std::vector<std::string> texts) {
  std::ranges::sort(texts);
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return one_of_sorted(texts, 0, texts.size(), 0);
}

// Of texts[begin, end), whose first `skip` bytes are equal and written already. Each branch is a
// rule, so that long chains of branches do not nest.
Phrase ByteGrammar::one_of_sorted(std::vector<std::string>& texts, size_t begin, size_t end,
                                  size_t skip) {
  const std::string &first = texts[begin], &last = texts[end - 1];
  size_t same = skip;
  while (same < std::min(first.size(), last.size()) && first[same] == last[same]) ++same;
  const Phrase shared = text(std::string_view(first).substr(skip, same - skip));
  if (end - begin == 1) return shared;
  std::vector<Phrase> branches;
  size_t i = begin;
  if (texts[i].size() == same) {  // a text that others continue
    branches.push_back(text(""));
    ++i;
  }
  for (size_t next = i; i < end; i = next) {
    while (next < end && texts[next][same] == texts[i][same]) ++next;
    branches.push_back(call(rule_of(one_of_sorted(texts, i, next, same))));
  }
  return sequence({shared, choice(std::move(branches))});
}

}  // namespace hearth::inline grammar
