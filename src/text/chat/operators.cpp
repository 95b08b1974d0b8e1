// Template operators, subscripts and slices.
#include <algorithm>
#include <cmath>

#include "text/chat/python_str.h"
#include "text/chat/value.h"

namespace hearth::jinja {
namespace {

constexpr std::string_view op_names[] = {"+",  "-",  "*", "/",  "//", "%",  "**", "~",
                                         "==", "!=", "<", "<=", ">",  ">=", "in", "not in"};

[[noreturn]] void refuse(Workspace& w, Op op, const Value& a, const Value& b) {
  if (is_undefined(a) || is_undefined(b)) {
    const std::string_view name = std::get<Undefined>(is_undefined(a) ? a : b).name;
    w.fail("cannot apply {}: {} is undefined", op_names[size_t(op)], name);
  }
  w.fail("{} cannot be applied to {} and {}", op_names[size_t(op)], kind_of(a), kind_of(b));
}

double real(const Value& v) {
  if (const auto* d = as<double>(v)) return *d;
  return as<bool>(v) ? double(*as<bool>(v)) : double(std::get<int64_t>(v));
}
int64_t integer(const Value& v) { return as<bool>(v) ? *as<bool>(v) : std::get<int64_t>(v); }

int64_t int_power(Workspace& w, int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (; exponent > 0; --exponent) {
    w.charge(1);
    if (__builtin_mul_overflow(result, base, &result)) w.fail("the result of ** exceeds 64 bits");
    if (base == 0 || base == 1) break;
  }
  return result;
}

Value whole(Workspace& w, Op op, int64_t a, int64_t b) {
  int64_t r = 0;
  bool overflow = false;
  if ((op == Op::floor_div || op == Op::mod) && b == 0)
    w.fail("expected a divisor other than 0, got 0");
  if ((op == Op::floor_div || op == Op::mod) && b == -1) {  // the quotient may overflow
    if (op == Op::mod) return int64_t(0);
    overflow = __builtin_sub_overflow(int64_t(0), a, &r);
  } else if (op == Op::add) {
    overflow = __builtin_add_overflow(a, b, &r);
  } else if (op == Op::sub) {
    overflow = __builtin_sub_overflow(a, b, &r);
  } else if (op == Op::mul) {
    overflow = __builtin_mul_overflow(a, b, &r);
  } else if (op == Op::pow) {
    r = int_power(w, a, b);
  } else {  // rounds down; the remainder has the sign of the divisor
    const bool fix = a % b != 0 && (a < 0) != (b < 0);
    r = op == Op::floor_div ? a / b - fix : a % b + (fix ? b : 0);
  }
  if (overflow) w.fail("the result of {} exceeds 64 bits", op_names[size_t(op)]);
  return r;
}

Value fraction(Workspace& w, Op op, double a, double b) {
  if ((op == Op::div || op == Op::floor_div || op == Op::mod) && b == 0)
    w.fail("expected a divisor other than 0, got 0");
  switch (op) {
    case Op::add:
      return a + b;
    case Op::sub:
      return a - b;
    case Op::mul:
      return a * b;
    case Op::div:
      return a / b;
    case Op::floor_div:
      return std::floor(a / b);
    case Op::mod:
      return a - b * std::floor(a / b);
    default:
      return std::pow(a, b);
  }
}

Value calculate(Workspace& w, Op op, const Value& a, const Value& b) {
  const bool reals = as<double>(a) || as<double>(b) || op == Op::div;
  if (reals || (op == Op::pow && integer(b) < 0)) return fraction(w, op, real(a), real(b));
  return whole(w, op, integer(a), integer(b));
}

Value repeat(Workspace& w, const Value& v, int64_t times) {
  const auto n = size_t(std::clamp<int64_t>(times, 0, int64_t(1) << 31));  // larger than any limit
  if (const List* l = list_of(v)) {
    std::vector<Value> items;
    w.charge(n * l->items.size());
    for (size_t i = 0; i < n && !l->items.empty(); ++i)
      items.insert(items.end(), l->items.begin(), l->items.end());
    return w.list(std::move(items), l->tuple);
  }
  const Text t = text_of(v);
  MarkedText out;
  w.charge_bytes(n * t->size());
  for (size_t i = 0; i < n && !t->empty(); ++i) out.add(*t);
  return w.text(std::move(out));
}

Value join_two(Workspace& w, MarkedText a, const MarkedText& b) {
  a.add(b);
  return w.text(std::move(a));
}

// An index from the front or, if negative, from the back; -1 if out of range.
int64_t place(int64_t index, int64_t size) {
  if (index < 0) index += size;
  return index < 0 || index >= size ? -1 : index;
}

}  // namespace

Value apply(Workspace& w, Op op, const Value& a, const Value& b) {
  switch (op) {
    case Op::eq:
      return equal(w, a, b);
    case Op::ne:
      return !equal(w, a, b);
    case Op::lt:
      return less(w, a, b);
    case Op::gt:
      return less(w, b, a);
    case Op::le:
      return less(w, a, b) || equal(w, a, b);
    case Op::ge:
      return less(w, b, a) || equal(w, a, b);
    case Op::in:
      return contains(w, b, a);
    case Op::not_in:
      return !contains(w, b, a);
    case Op::concat:
      return join_two(w, printed(w, a), printed(w, b));
    default:
      break;
  }
  if (is_number(a) && is_number(b)) return calculate(w, op, a, b);
  if (op == Op::add) {
    if (text_of(a) && text_of(b)) return join_two(w, *text_of(a), *text_of(b));
    const List *l = list_of(a), *r = list_of(b);
    if (l && r && l->tuple == r->tuple) {
      std::vector<Value> items = l->items;
      items.insert(items.end(), r->items.begin(), r->items.end());
      return w.list(std::move(items), l->tuple);
    }
  }
  const bool swapped = as<int64_t>(a) != nullptr;
  const Value& subject = swapped ? b : a;
  if (op == Op::mul && as<int64_t>(swapped ? a : b) && (text_of(subject) || list_of(subject)))
    return repeat(w, subject, std::get<int64_t>(swapped ? a : b));
  refuse(w, op, a, b);
}

Value item_of(Workspace& w, const Value& object, const Value& key) {
  if (Map* m = map_of(object)) {
    w.charge(m->entries.size() / 8);
    const Text name = text_of(key);
    const Value* found = name ? m->find(name->bytes) : nullptr;
    return found ? *found : Value(Undefined{name ? std::string_view(name->bytes) : "an item"});
  }
  const auto* index = as<int64_t>(key);
  if (const List* l = list_of(object); l && index) {
    const int64_t i = place(*index, int64_t(l->items.size()));
    return i < 0 ? Value(Undefined{"an item beyond the list's end"}) : l->items[size_t(i)];
  }
  if (const Text t = text_of(object); t && index) {
    const int64_t i = place(*index, length(w, object));
    if (i < 0) return Undefined{"a character beyond the text's end"};
    const size_t at = char_offset(t->bytes, size_t(i));
    return w.text(t->part(at, char_bytes(t->bytes, at)));
  }
  if (const auto* u = as<Undefined>(object))
    w.fail("cannot take an item: {} is undefined", u->name);
  return Undefined{text_of(key) ? std::string_view(text_of(key)->bytes) : "an item"};
}

Value slice_of(Workspace& w, const Value& object, const Value (&bounds)[3]) {
  if (!list_of(object) && !text_of(object))
    w.fail("expected a list or text to slice, got {}", kind_of(object));
  const auto bound = [&](size_t which, int64_t otherwise) {
    if (is_none(bounds[which])) return otherwise;
    if (const auto* i = as<int64_t>(bounds[which])) return *i;
    w.fail("expected whole numbers in a slice, got {}", kind_of(bounds[which]));
  };
  const int64_t step = bound(2, 1), size = length(w, object);
  if (step == 0) w.fail("expected a slice step other than 0, got 0");
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const auto clip = [&](int64_t i) { return std::clamp(i < 0 ? i + size : i, low, high); };
  int64_t from = is_none(bounds[0]) ? (step > 0 ? low : high) : clip(bound(0, 0));
  const int64_t to = is_none(bounds[1]) ? (step > 0 ? high : low) : clip(bound(1, 0));
  if (const Text t = text_of(object); t && step == 1) {
    const size_t begin = char_offset(t->bytes, size_t(from));
    const size_t end = char_offset(t->bytes, size_t(std::max(from, to)));
    return w.text(t->part(begin, end - begin));
  }
  const std::vector<Value> all = elements(w, object);
  std::vector<Value> taken;
  while (step > 0 ? from < to : from > to) {
    taken.push_back(all[size_t(from)]);
    if (__builtin_add_overflow(from, step, &from)) break;
  }
  if (const List* l = list_of(object)) return w.list(std::move(taken), l->tuple);
  MarkedText out;
  for (const Value& c : taken) out.add(*text_of(c));
  return w.text(std::move(out));
}

}  // namespace hearth::jinja
