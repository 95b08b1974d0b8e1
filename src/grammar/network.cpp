#include "grammar/network.h"

#include <algorithm>
#include <bitset>
#include <deque>

#include "sys/error.h"

namespace hearth::inline grammar {
namespace {

using NodeKind = NetworkNode::Kind;

constexpr size_t most_nodes = 1'000'000;
constexpr int32_t endless = 1 << 20;  // need of a node that cannot reach the end

// Whether copying an expression costs no more than calling it.
bool is_small(const GrammarExpr& e) {
  return e.kind == GrammarExpr::Kind::byte || e.kind == GrammarExpr::Kind::call ||
         (e.kind == GrammarExpr::Kind::text && e.text.size() <= 1);
}

}  // namespace

Network::Network(const ByteGrammar& g) : where_(g.where()) {
  add({.kind = NodeKind::accept});
  start_ = build(g, g.root(), accept);
  std::vector<int32_t> starts;
  for (size_t r = 0; r < rules_.size(); ++r)  // building a rule may add rules
    starts.push_back(build(g, rules_[r], accept));
  for (NetworkNode& n : nodes_)
    if (n.kind == NodeKind::call) n.other = starts[size_t(n.other)];
  measure_needs();
  if (const int32_t need = nodes_[size_t(start_)].need; need > most_frames)
    fail_usage(where_, "{}",
               need >= endless ? "no finite text matches: something refers to itself and cannot end"
                               : "every text that matches nests too deeply");
  divide_bytes();
}

int32_t Network::add(NetworkNode n) {
  if (nodes_.size() >= most_nodes)
    fail_usage(where_, "expected a grammar of at most {} states, got more", most_nodes);
  nodes_.push_back(n);
  return int32_t(nodes_.size() - 1);
}

int32_t Network::call_of(Phrase p, int32_t next) {
  const auto [at, fresh] = rule_of_.try_emplace(p, int32_t(rules_.size()));
  if (fresh) rules_.push_back(p);
  return add({.kind = NodeKind::call, .next = next, .other = at->second});
}

// The first node of an expression that continues at `next`.
int32_t Network::build(const ByteGrammar& g, Phrase p, int32_t next) {
  const GrammarExpr& e = g.at(p);
  switch (e.kind) {
    case GrammarExpr::Kind::text:
      for (size_t i = e.text.size(); i-- > 0;)
        next = add({.kind = NodeKind::byte,
                    .low = uint8_t(e.text[i]),
                    .high = uint8_t(e.text[i]),
                    .next = next});
      return next;
    case GrammarExpr::Kind::byte:
      return add({.kind = NodeKind::byte, .low = e.low, .high = e.high, .next = next});
    case GrammarExpr::Kind::sequence:
      for (size_t i = e.parts.size(); i-- > 0;) next = build(g, e.parts[i], next);
      return next;
    case GrammarExpr::Kind::choice: {
      int32_t all = build(g, e.parts.back(), next);
      for (size_t i = e.parts.size() - 1; i-- > 0;)
        all = add({.kind = NodeKind::split, .next = build(g, e.parts[i], next), .other = all});
      return all;
    }
    case GrammarExpr::Kind::repeat:
      return build_repeat(g, e, next);
    case GrammarExpr::Kind::call:
      break;
  }
  return call_of(g.rule(e.rule), next);
}

int32_t Network::build_repeat(const ByteGrammar& g, const GrammarExpr& e, int32_t next) {
  const Phrase part = e.parts[0];
  const bool copies = is_small(g.at(part)) || std::max(e.least + (e.most < 0), e.most) <= 1;
  const auto body = [&](int32_t after) {
    return copies ? build(g, part, after) : call_of(part, after);
  };
  int32_t begin = next;
  if (e.most < 0) {
    const int32_t loop = add({.kind = NodeKind::split, .other = next});
    const int32_t first = body(loop);
    nodes_[size_t(loop)].next = first;
    begin = loop;
  }
  for (int64_t i = e.least; i < e.most; ++i)
    begin = add({.kind = NodeKind::split, .next = body(begin), .other = next});
  for (int64_t i = 0; i < e.least; ++i) begin = body(begin);
  return begin;
}

// need: the frames that the stack grows by, on the path to the end of the rule that needs fewest. A
// call at the end of a rule needs no frame. A change of a node is passed on to the nodes before it.
void Network::measure_needs() {
  std::vector<int32_t> first(nodes_.size() + 1, 0), before(2 * nodes_.size());
  const auto each_next = [&](const NetworkNode& n, auto&& f) {
    if (n.kind != NodeKind::accept) f(n.next);
    if (n.kind == NodeKind::split || n.kind == NodeKind::call) f(n.other);
  };
  for (const NetworkNode& n : nodes_) each_next(n, [&](int32_t to) { ++first[size_t(to)]; });
  for (size_t i = 0, sum = 0; i < first.size(); ++i)
    sum += size_t(first[i]), first[i] = int32_t(sum);
  for (size_t i = 0; i < nodes_.size(); ++i)
    each_next(nodes_[i], [&](int32_t to) { before[size_t(--first[size_t(to)])] = int32_t(i); });
  for (NetworkNode& n : nodes_) n.need = n.kind == NodeKind::accept ? 0 : endless;
  const auto need = [&](int32_t node) { return nodes_[size_t(node)].need; };
  std::deque<int32_t> changed{accept};
  for (; !changed.empty(); changed.pop_front()) {
    const size_t at = size_t(changed.front());
    for (int32_t i = first[at]; i < first[at + 1]; ++i) {
      NetworkNode& n = nodes_[size_t(before[size_t(i)])];
      int32_t now = need(n.next);
      if (n.kind == NodeKind::split) now = std::min(now, need(n.other));
      if (n.kind == NodeKind::call)
        now = std::min(endless, std::max(now, need(n.other) + (n.next != accept)));
      if (now >= n.need) continue;
      n.need = now;
      changed.push_back(before[size_t(i)]);
    }
  }
}

void Network::divide_bytes() {
  std::bitset<257> begins;
  begins[0] = true;
  for (const NetworkNode& n : nodes_)
    if (n.kind == NodeKind::byte) begins[n.low] = begins[size_t(n.high) + 1] = true;
  int current = -1;
  for (size_t b = 0; b < 256; ++b) class_of_[b] = uint8_t(begins[b] ? ++current : current);
  classes_ = current + 1;
}

}  // namespace hearth::inline grammar
