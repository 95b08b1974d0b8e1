#include "core/plan.h"

#include <algorithm>
#include <numeric>

#include "core/join.h"

namespace hearth::inline core {
namespace {

int64_t aligned(int64_t n) { return (n + 255) / 256 * 256; }

// First and last node that touch each value's memory; -1 if none does.
struct Life {
  int first = -1, last = -1;
};

std::vector<Life> lives(const Tape& t) {
  std::vector<Life> life(t.values.size());
  std::vector<int> lasting;
  const auto touch = [&](Var v, int at) {
    if (!v) return;
    Life& l = life[size_t(t[v].storage)];
    if (l.first < 0) l.first = at;
    l.last = at;
  };
  const int end = int(t.nodes.size());
  for (int i = 0; i < end; ++i) {
    // A node on another stream may run as late as the end of the program.
    const bool aside = t.nodes[size_t(i)].stream != StreamKind::compute;
    for (const auto* vars : {&t.nodes[size_t(i)].in, &t.nodes[size_t(i)].out})
      for (Var v : *vars) {
        touch(v, i);
        if (v && aside) lasting.push_back(t[v].storage);
      }
  }
  for (const int storage : lasting) life[size_t(storage)].last = end - 1;
  return life;
}

int64_t bytes_of(const Value& v) { return aligned(v.shape.numel() * size_of(v.dtype)); }

bool owns_arena(const Tape& t, size_t id) {
  return t.values[id].storage == int(id) && t.values[id].role == Role::temp;
}

}  // namespace

void alias(Tape& t) {
  std::vector<Life> life = lives(t);
  std::vector<int> owner(t.values.size());  // owner of each storage, after merging
  std::iota(owner.begin(), owner.end(), 0);
  const auto root = [&](int s) {
    while (owner[size_t(s)] != s) s = owner[size_t(s)];
    return s;
  };
  for (int i = 0; i < int(t.nodes.size()); ++i) {
    const Node& n = t.nodes[size_t(i)];
    std::vector<int> taken;
    const auto readers = [&](int storage) {
      return std::count_if(n.in.begin(), n.in.end(),
                           [&](Var v) { return v && root(t[v].storage) == storage; });
    };
    for (auto [o, k] : n.op->inplace) {
      const Var out = n.out[size_t(o)], in = n.in[size_t(k)];
      if (!out || !in) continue;
      const int from = t[out].storage, to = root(t[in].storage);
      if (!owns_arena(t, size_t(from)) || from != out.id || owner[size_t(from)] != from) continue;
      if (!owns_arena(t, size_t(to)) || t[in].offset != 0 || from == to) continue;
      if (life[size_t(to)].last != i || life[size_t(from)].first != i) continue;
      if (bytes_of(t[out]) != bytes_of(t.values[size_t(to)])) continue;
      if (std::find(taken.begin(), taken.end(), to) != taken.end()) continue;
      // The operand appears twice: the op allows only one of them to be overwritten.
      if (readers(to) > 1) continue;
      owner[size_t(from)] = to;
      life[size_t(to)].last = life[size_t(from)].last;
      taken.push_back(to);
    }
  }
  for (Value& v : t.values) v.storage = root(v.storage);
}

void simplify(Tape& t) {
  join_gates(t);
  join_sums(t);
  prune(t);
  alias(t);
}

Plan plan(const Tape& t) {
  struct Block {
    int id;
    int64_t bytes;
    Life life;
    int64_t offset = 0;
  };
  const std::vector<Life> life = lives(t);
  Plan p;
  p.offset.assign(t.values.size(), -1);
  std::vector<Block> todo, placed;
  std::vector<int64_t> change(t.nodes.size() + 1);
  for (size_t id = 0; id < t.values.size(); ++id) {
    if (!owns_arena(t, id) || life[id].first < 0) continue;
    const int64_t bytes = bytes_of(t.values[id]);
    todo.push_back({int(id), bytes, life[id]});
    p.total_bytes += bytes;
    change[size_t(life[id].first)] += bytes;
    change[size_t(life[id].last) + 1] -= bytes;
  }
  int64_t live = 0;
  for (int64_t d : change) p.bound_bytes = std::max(p.bound_bytes, live += d);

  std::stable_sort(todo.begin(), todo.end(),
                   [](const Block& a, const Block& b) { return a.bytes > b.bytes; });
  // `placed` is sorted by offset, so that the gaps are visited in order.
  for (const Block& b : todo) {
    int64_t at = 0;
    for (const Block& q : placed) {
      if (q.life.first > b.life.last || b.life.first > q.life.last) continue;
      if (at + b.bytes <= q.offset) break;
      at = std::max(at, q.offset + q.bytes);
    }
    p.offset[size_t(b.id)] = at;
    p.arena_bytes = std::max(p.arena_bytes, at + b.bytes);
    const auto place = std::ranges::upper_bound(placed, at, {}, &Block::offset);
    placed.insert(place, b)->offset = at;
  }
  return p;
}

}  // namespace hearth::inline core
