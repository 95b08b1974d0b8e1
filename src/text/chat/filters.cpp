// Template filters: x | name(arguments).
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "formats/json.h"
#include "text/chat/python_str.h"
#include "text/chat/value.h"

namespace hearth::jinja {
namespace {

using Filter = Value (*)(Workspace&, const Value&, const Args&);

bool flag_of(const Args& args, size_t place, std::string_view name, bool otherwise = false) {
  const Value* v = args.find(place, name);
  return v ? truth(*v) : otherwise;
}

// Follows a path of keys and indices ("function.name", "0") into a value.
Value attribute(Workspace& w, Value v, const Value& path) {
  if (as<int64_t>(path)) return item_of(w, v, path);
  const Text names = text_of(path);
  if (!names) w.fail("expected an attribute name, got {}", kind_of(path));
  for (const MarkedText& name : split(*names, ".", -1, Side::left)) {
    int64_t index = 0;
    const char *begin = name.bytes.data(), *end = begin + name.size();
    const auto [stop, error] = std::from_chars(begin, end, index);
    const bool number = !name.empty() && stop == end;
    if (error == std::errc::result_out_of_range) index = INT64_MAX;  // beyond any list
    v = item_of(w, v, number ? Value(index) : Value(w.text(name)));
  }
  return v;
}

// The sort key of an item: itself or an attribute, in lower case unless case-sensitive.
Value sort_key(Workspace& w, const Value& item, const Value* path, bool case_sensitive) {
  const Value v = path ? attribute(w, item, *path) : item;
  const Text t = text_of(v);
  return t && !case_sensitive ? Value(w.text(change_case(*t, Case::lower))) : v;
}

void sort_by_key(Workspace& w, std::vector<std::pair<Value, Value>>& keyed, bool reverse) {
  std::ranges::stable_sort(keyed, [&](const auto& a, const auto& b) {
    return reverse ? less(w, b.first, a.first) : less(w, a.first, b.first);
  });
}

Value filter_sort(Workspace& w, const Value& v, const Args& args) {
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : elements(w, v))
    keyed.emplace_back(
        sort_key(w, item, args.find(2, "attribute"), flag_of(args, 1, "case_sensitive")), item);
  sort_by_key(w, keyed, flag_of(args, 0, "reverse"));
  List* out = w.list();
  for (const auto& [key, item] : keyed) out->items.push_back(item);
  return out;
}

Value pair_of(Workspace& w, Text key, const Value& value) { return w.list({key, value}, true); }

Map& mapping(Workspace& w, const Value& v) {
  Map* m = map_of(v);
  if (!m || m->is_namespace) w.fail("expected a mapping, got {}", kind_of(v));
  return *m;
}

Value filter_items(Workspace& w, const Value& v, const Args&) {
  List* out = w.list();
  if (is_undefined(v)) return out;
  for (const auto& [key, value] : mapping(w, v).entries)
    out->items.push_back(pair_of(w, key, value));
  return out;
}

Value filter_dictsort(Workspace& w, const Value& v, const Args& args) {
  const Value* by = args.find(1, "by");
  const bool by_value = by && text_of(*by) && text_of(*by)->bytes == "value";
  const bool case_sensitive = flag_of(args, 0, "case_sensitive");
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : mapping(w, v).entries)
    keyed.emplace_back(sort_key(w, by_value ? value : Value(key), nullptr, case_sensitive),
                       pair_of(w, key, value));
  sort_by_key(w, keyed, flag_of(args, 2, "reverse"));
  List* out = w.list();
  for (const auto& [key, pair] : keyed) out->items.push_back(pair);
  return out;
}

Value filter_unique(Workspace& w, const Value& v, const Args& args) {
  List *out = w.list(), *seen = w.list();
  for (const Value& item : elements(w, v)) {
    const Value key =
        sort_key(w, item, args.find(1, "attribute"), flag_of(args, 0, "case_sensitive"));
    if (contains(w, seen, key)) continue;
    seen->items.push_back(key);
    out->items.push_back(item);
  }
  return out;
}

template <bool smallest>
Value filter_extreme(Workspace& w, const Value& v, const Args& args) {
  const Value* best = nullptr;
  Value best_key;
  const std::vector<Value> items = elements(w, v);
  for (const Value& item : items) {
    const Value key =
        sort_key(w, item, args.find(1, "attribute"), flag_of(args, 0, "case_sensitive"));
    if (best && !(smallest ? less(w, key, best_key) : less(w, best_key, key))) continue;
    best = &item;
    best_key = key;
  }
  return best ? *best : Value(Undefined{"an item of an empty list"});
}

Value filter_map(Workspace& w, const Value& v, const Args& args) {
  List* out = w.list();
  const Value* path = args.find(SIZE_MAX, "attribute");
  const Value* otherwise = args.find(SIZE_MAX, "default");
  const Text name = args.list.empty() ? nullptr : text_of(args.list[0]);
  if (!path && !name) w.fail("map needs a filter name or attribute=");
  const Args rest = path ? Args() : Args{{args.list.begin() + 1, args.list.end()}, args.named};
  if (!truth(v)) return out;  // also for none
  for (const Value& item : elements(w, v)) {
    Value made = path ? attribute(w, item, *path) : call_filter(w, name->bytes, item, rest);
    if (path && otherwise && is_undefined(made)) made = *otherwise;
    out->items.push_back(made);
  }
  return out;
}

// select, reject and their attr forms: keep the items that pass a test (or are true), or the
// others.
template <bool keep, bool by_attribute>
Value filter_choose(Workspace& w, const Value& v, const Args& args) {
  if (by_attribute && args.list.empty()) w.fail("expected an attribute name, got none");
  const size_t test = by_attribute;
  Args rest{{}, args.named};
  if (args.list.size() > test) rest.list.assign(args.list.begin() + test + 1, args.list.end());
  const Text name = args.list.size() > test ? text_of(args.list[test]) : nullptr;
  if (args.list.size() > test && !name)
    w.fail("expected the name of a test, got {}", kind_of(args.list[test]));
  List* out = w.list();
  if (!truth(v)) return out;  // also for none
  for (const Value& item : elements(w, v)) {
    const Value subject = by_attribute ? attribute(w, item, args.list[0]) : item;
    if ((name ? call_test(w, name->bytes, subject, rest) : truth(subject)) == keep)
      out->items.push_back(item);
  }
  return out;
}

Value filter_join(Workspace& w, const Value& v, const Args& args) {
  const Value *by = args.find(0, "d"), *path = args.find(1, "attribute");
  const MarkedText separator = by ? printed(w, *by) : MarkedText();
  MarkedText out;
  bool first = true;
  for (const Value& item : elements(w, v)) {
    const MarkedText part = printed(w, path ? attribute(w, item, *path) : item);
    w.charge_bytes(part.size() + separator.size());
    if (!first) out.add(separator);
    out.add(part);
    first = false;
  }
  return w.text(std::move(out));
}

template <bool front>
Value filter_end(Workspace& w, const Value& v, const Args&) {
  const std::vector<Value> items = elements(w, v);
  if (items.empty()) return Undefined{"an item of an empty list"};
  return front ? items.front() : items.back();
}

Value filter_reverse(Workspace& w, const Value& v, const Args&) {
  std::vector<Value> items = elements(w, v);
  std::ranges::reverse(items);
  if (!text_of(v)) return w.list(std::move(items));
  MarkedText out;
  for (const Value& c : items) out.add(*text_of(c));
  return w.text(std::move(out));
}

Value filter_sum(Workspace& w, const Value& v, const Args& args) {
  const Value *path = args.find(0, "attribute"), *start = args.find(1, "start");
  Value total = start ? *start : Value(int64_t(0));
  for (const Value& item : elements(w, v))
    total = apply(w, Op::add, total, path ? attribute(w, item, *path) : item);
  return total;
}

Value filter_list(Workspace& w, const Value& v, const Args&) { return w.list(elements(w, v)); }
Value filter_length(Workspace& w, const Value& v, const Args&) { return length(w, v); }
Value filter_string(Workspace& w, const Value& v, const Args&) { return w.text(printed(w, v)); }

Value filter_default(Workspace& w, const Value& v, const Args& args) {
  const Value* otherwise = args.find(0, "default_value");
  if (!is_undefined(v) && (truth(v) || !flag_of(args, 1, "boolean"))) return v;
  return otherwise ? *otherwise : Value(w.text(""));
}

Value filter_tojson(Workspace& w, const Value& v, const Args& args) {
  JsonStyle style;
  style.ascii = flag_of(args, SIZE_MAX, "ensure_ascii");
  style.sort_keys = flag_of(args, SIZE_MAX, "sort_keys");
  if (const Value* n = args.find(0, "indent"); n && !is_none(*n)) {
    if (!as<int64_t>(*n)) w.fail("expected a whole number for indent, got {}", kind_of(*n));
    style.indent = int(std::clamp<int64_t>(*as<int64_t>(*n), 0, 64));
  }
  style.item_separator = style.indent >= 0 ? "," : ", ";
  if (const Value* s = args.find(SIZE_MAX, "separators"); s && !is_none(*s)) {
    const std::vector<Value> two = elements(w, *s);
    if (two.size() != 2) w.fail("expected two separators, got {}", two.size());
    style.item_separator = printed(w, two[0]).bytes;
    style.key_separator = printed(w, two[1]).bytes;
  }
  return w.text(to_json(w, v, style));
}

Value filter_trim(Workspace& w, const Value& v, const Args& args) {
  const Value* chars = args.find(0, "chars");
  const Text which = chars ? text_of(*chars) : nullptr;
  return w.text(strip(printed(w, v), Side::both,
                      which ? std::optional<std::string_view>(which->bytes) : std::nullopt));
}

template <Case wanted>
Value filter_case(Workspace& w, const Value& v, const Args&) {
  return w.text(change_case(printed(w, v), wanted));
}

Value filter_replace(Workspace& w, const Value& v, const Args& args) {
  return call_method(w, w.text(printed(w, v)), "replace", args);
}

Value filter_indent(Workspace& w, const Value& v, const Args& args) {
  const Value* width = args.find(0, "width");
  MarkedText by(std::string(4, ' '));
  if (width && text_of(*width)) by = *text_of(*width);
  if (width && as<int64_t>(*width))
    by = MarkedText(std::string(size_t(std::clamp<int64_t>(*as<int64_t>(*width), 0, 1000)), ' '));
  const MarkedText text = printed(w, v);
  w.charge_bytes(size_t(std::ranges::count(text.bytes, '\n') + 1) * by.size());
  return w.text(indent(text, by, flag_of(args, 1, "first"), flag_of(args, 2, "blank")));
}

// A float as Python reads it: one that is too large is infinite, one that is too small is zero.
std::optional<double> float_of(const std::string& text) {
  double d = 0;
  const char *begin = text.data(), *end = begin + text.size();
  const auto [stop, error] = std::from_chars(begin, end, d);
  if (text.empty() || stop != end) return std::nullopt;
  return error == std::errc::result_out_of_range ? std::strtod(begin, nullptr) : d;
}

Value filter_int(Workspace& w, const Value& v, const Args& args) {
  const Value* otherwise = args.find(0, "default");
  const Value fallback = otherwise ? *otherwise : Value(int64_t(0));
  if (as<int64_t>(v)) return v;
  if (const auto* b = as<bool>(v)) return int64_t(*b);
  double d = 0;
  if (const auto* real = as<double>(v)) {
    d = *real;
  } else if (const Text t = text_of(v)) {
    const std::string digits = strip(*t, Side::both).bytes;
    const char *begin = digits.data(), *end = begin + digits.size();
    int64_t i = 0;
    const auto [stop, error] = std::from_chars(begin, end, i);
    const bool whole = !digits.empty() && stop == end;
    if (whole && error == std::errc()) return i;
    const std::optional<double> read = float_of(digits);
    if (!read || (!whole && !std::isfinite(*read))) return fallback;
    d = *read;
  } else {
    return fallback;
  }
  if (!(std::abs(d) < 9e18)) w.fail("expected a number within 64 bits, got {}", d);
  return int64_t(d);
}

Value filter_float(Workspace& w, const Value& v, const Args& args) {
  const Value* otherwise = args.find(0, "default");
  if (const auto* i = as<int64_t>(v)) return double(*i);
  if (is_number(v)) return apply(w, Op::mul, v, 1.0);
  if (const Text t = text_of(v)) {
    if (const std::optional<double> read = float_of(strip(*t, Side::both).bytes)) return *read;
  }
  return otherwise ? *otherwise : Value(0.0);
}

Value filter_round(Workspace& w, const Value& v, const Args& args) {
  if (!is_number(v)) w.fail("expected a number to round, got {}", kind_of(v));
  const Value *digits = args.find(0, "precision"), *how = args.find(1, "method");
  const std::string method = how ? printed(w, *how).bytes : "common";
  const int64_t places = digits && as<int64_t>(*digits) ? *as<int64_t>(*digits) : 0;
  const double scale = std::pow(10.0, double(std::clamp<int64_t>(places, -300, 300)));
  const double d = std::get<double>(apply(w, Op::mul, v, 1.0)) * scale;
  if (method == "ceil") return std::ceil(d) / scale;
  if (method == "floor") return std::floor(d) / scale;
  if (method != "common") w.fail("expected common, ceil or floor, got {}", in_quotes(method));
  return std::nearbyint(d) / scale;  // rounds half to even, like Python
}

Value filter_abs(Workspace& w, const Value& v, const Args&) {
  if (!is_number(v)) w.fail("expected a number, got {}", kind_of(v));
  return truth(less(w, v, int64_t(0))) ? apply(w, Op::sub, int64_t(0), v) : v;
}

Value filter_safe(Workspace&, const Value& v, const Args&) { return v; }

struct NamedFilter {
  std::string_view name;
  Filter run;
};
constexpr NamedFilter filters[] = {
    {"abs", filter_abs},
    {"capitalize", filter_case<Case::capitalize>},
    {"count", filter_length},
    {"d", filter_default},
    {"default", filter_default},
    {"dictsort", filter_dictsort},
    {"first", filter_end<true>},
    {"float", filter_float},
    {"indent", filter_indent},
    {"int", filter_int},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_end<false>},
    {"length", filter_length},
    {"list", filter_list},
    {"lower", filter_case<Case::lower>},
    {"map", filter_map},
    {"max", filter_extreme<false>},
    {"min", filter_extreme<true>},
    {"reject", filter_choose<false, false>},
    {"rejectattr", filter_choose<false, true>},
    {"replace", filter_replace},
    {"reverse", filter_reverse},
    {"round", filter_round},
    {"safe", filter_safe},
    {"select", filter_choose<true, false>},
    {"selectattr", filter_choose<true, true>},
    {"sort", filter_sort},
    {"string", filter_string},
    {"sum", filter_sum},
    {"title", filter_case<Case::title>},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"unique", filter_unique},
    {"upper", filter_case<Case::upper>},
};

}  // namespace

Value call_filter(Workspace& w, std::string_view name, const Value& input, const Args& args) {
  const Deeper deeper(w);
  w.charge(1);
  const auto* found = std::ranges::find(filters, name, &NamedFilter::name);
  if (found == std::end(filters)) w.fail("expected a known filter, got {}", in_quotes(name));
  return found->run(w, input, args);
}

}  // namespace hearth::jinja
