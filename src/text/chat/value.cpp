#include "text/chat/value.h"

#include <algorithm>

#include "text/chat/python_str.h"

namespace hearth::jinja {
namespace {

// The numeric value of a number or bool, which compare with each other; null for other values.
const double* number_in(const Value& v, double& room) {
  if (const auto* b = as<bool>(v)) return &(room = *b);
  if (const auto* i = as<int64_t>(v)) return &(room = double(*i));
  if (const auto* d = as<double>(v)) return &(room = *d);
  return nullptr;
}

bool equal_maps(Workspace& w, Map& a, Map& b) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    w.charge(b.entries.size());
    const Value* other = b.find(key->bytes);
    if (!other || !equal(w, value, *other)) return false;
  }
  return true;
}

}  // namespace

Value* Map::find(std::string_view key) {
  for (auto& [k, v] : entries)
    if (k->bytes == key) return &v;
  return nullptr;
}

void Map::set(Text key, Value value) {
  if (Value* old = find(key->bytes))
    *old = value;
  else
    entries.emplace_back(key, value);
}

const Value* Args::find(size_t place, std::string_view name) const {
  if (place < list.size()) return &list[place];
  for (const auto& [key, value] : named)
    if (key == name) return &value;
  return nullptr;
}

std::string_view kind_of(const Value& v) {
  constexpr std::string_view kinds[] = {
      "an undefined value", "none",      "a bool", "an integer", "a float", "text", "a list",
      "a mapping",          "a function"};
  return kinds[v.index()];
}

bool truth(const Value& v) {
  double room;
  if (const double* n = number_in(v, room)) return *n != 0;
  if (const Text t = text_of(v)) return !t->empty();
  if (const List* l = list_of(v)) return !l->items.empty();
  if (const Map* m = map_of(v)) return m->is_namespace || !m->entries.empty();
  return as<Callable*>(v) != nullptr;
}

bool equal(Workspace& w, const Value& a, const Value& b) {
  const Deeper deeper(w);
  w.charge(1);
  if (as<int64_t>(a) && as<int64_t>(b)) return *as<int64_t>(a) == *as<int64_t>(b);
  double room_a, room_b;
  const double *x = number_in(a, room_a), *y = number_in(b, room_b);
  if (x && y) return *x == *y;
  if (a.index() != b.index()) return false;
  if (const Text s = text_of(a)) {
    w.charge_bytes(s->size());
    return s->bytes == text_of(b)->bytes;
  }
  if (List* p = list_of(a), *q = list_of(b); p) {
    if (p == q) return true;
    return p->tuple == q->tuple &&
           std::ranges::equal(p->items, q->items,
                              [&](const Value& l, const Value& r) { return equal(w, l, r); });
  }
  if (Map* p = map_of(a), *q = map_of(b); p)
    return p == q || (!p->is_namespace && !q->is_namespace && equal_maps(w, *p, *q));
  if (const auto* f = as<Callable*>(a)) return *f == *as<Callable*>(b);
  return true;  // both undefined or both none
}

bool less(Workspace& w, const Value& a, const Value& b) {
  const Deeper deeper(w);
  w.charge(1);
  if (as<int64_t>(a) && as<int64_t>(b)) return *as<int64_t>(a) < *as<int64_t>(b);
  double room_a, room_b;
  const double *x = number_in(a, room_a), *y = number_in(b, room_b);
  if (x && y) return *x < *y;
  if (const Text s = text_of(a), t = text_of(b); s && t) {
    w.charge_bytes(std::min(s->size(), t->size()));
    return s->bytes < t->bytes;
  }
  if (const List* p = list_of(a), *q = list_of(b); p && q) {
    const size_t n = std::min(p->items.size(), q->items.size());
    for (size_t i = 0; i < n; ++i)
      if (!equal(w, p->items[i], q->items[i])) return less(w, p->items[i], q->items[i]);
    return p->items.size() < q->items.size();
  }
  w.fail("expected two numbers, texts or lists to compare, got {} and {}", kind_of(a), kind_of(b));
}

bool contains(Workspace& w, const Value& container, const Value& item) {
  if (const Text t = text_of(container)) {
    const Text part = text_of(item);
    if (!part) w.fail("expected text to search for in text, got {}", kind_of(item));
    w.charge_bytes(t->size());
    return t->bytes.find(part->bytes) != std::string::npos;
  }
  if (Map* m = map_of(container); m && !m->is_namespace) {
    w.charge(m->entries.size());
    return text_of(item) && m->find(text_of(item)->bytes);
  }
  if (const List* l = list_of(container))
    return std::ranges::any_of(l->items, [&](const Value& v) { return equal(w, v, item); });
  if (is_undefined(container)) return false;
  w.fail("expected text, a list or a mapping after `in`, got {}", kind_of(container));
}

std::vector<Value> elements(Workspace& w, const Value& v) {
  std::vector<Value> out;
  if (const List* l = list_of(v)) {
    w.charge(l->items.size());
    return l->items;
  }
  if (Map* m = map_of(v); m && !m->is_namespace) {
    w.charge(m->entries.size());
    for (const auto& [key, value] : m->entries) out.push_back(key);
    return out;
  }
  if (const Text t = text_of(v)) {
    for (size_t i = 0; i < t->size();) {
      const size_t n = char_bytes(t->bytes, i);
      out.push_back(w.text(t->part(i, n)));
      i += n;
    }
    return out;
  }
  if (is_undefined(v)) return out;
  w.fail("expected a list, a mapping or text to iterate over, got {}", kind_of(v));
}

int64_t length(Workspace& w, const Value& v) {
  if (const List* l = list_of(v)) return int64_t(l->items.size());
  if (Map* m = map_of(v); m && !m->is_namespace) return int64_t(m->entries.size());
  if (const Text t = text_of(v)) {
    w.charge_bytes(t->size());
    return int64_t(char_count(t->bytes));
  }
  if (is_undefined(v)) return 0;
  w.fail("expected a list, a mapping or text for length, got {}", kind_of(v));
}

}  // namespace hearth::jinja
