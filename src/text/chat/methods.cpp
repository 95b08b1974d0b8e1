// Methods of values (text.split(), mapping.items()) and the functions that templates can call.
#include <algorithm>

#include "formats/json.h"
#include "sys/terminal.h"
#include "text/chat/python_str.h"
#include "text/chat/value.h"

namespace hearth::jinja {
namespace {

Text text_argument(Workspace& w, const Args& args, size_t place, std::string_view name) {
  const Value* v = args.find(place, name);
  if (!v || !text_of(*v)) w.fail("expected text for {}, got {}", name, v ? kind_of(*v) : "nothing");
  return text_of(*v);
}

int64_t count_argument(Workspace& w, const Args& args, size_t place, std::string_view name) {
  const Value* v = args.find(place, name);
  if (!v || is_none(*v)) return -1;
  if (!as<int64_t>(*v)) w.fail("expected a whole number for {}, got {}", name, kind_of(*v));
  return std::max<int64_t>(-1, *as<int64_t>(*v));
}

Value strip_text(Workspace& w, const MarkedText& t, Side side, const Args& args) {
  const Value* chars = args.find(0, "chars");
  if (!chars || is_none(*chars)) return w.text(strip(t, side));
  return w.text(strip(t, side, text_argument(w, args, 0, "chars")->bytes));
}

Value list_of_texts(Workspace& w, std::vector<MarkedText> parts) {
  List* out = w.list();
  for (MarkedText& part : parts) out->items.push_back(w.text(std::move(part)));
  return out;
}

Value split_text(Workspace& w, const MarkedText& t, Side side, const Args& args) {
  const Value* separator = args.find(0, "sep");
  const int64_t most = count_argument(w, args, 1, "maxsplit");
  w.charge_bytes(t.size());
  if (!separator || is_none(*separator)) {
    if (side == Side::right && most >= 0) w.fail("rsplit with a limit needs a separator");
    return list_of_texts(w, split_words(t, most));
  }
  const std::string& by = text_argument(w, args, 0, "sep")->bytes;
  if (by.empty()) w.fail("expected a separator, got empty text");
  return list_of_texts(w, split(t, by, most, side));
}

Value replace_text(Workspace& w, const MarkedText& t, const Args& args) {
  const MarkedText& old = *text_argument(w, args, 0, "old");
  const MarkedText& by = *text_argument(w, args, 1, "new");
  size_t found = old.empty() ? t.size() + 1 : 0;
  if (!old.empty())
    for (size_t i = 0; (i = t.bytes.find(old.bytes, i)) != std::string::npos; i += old.size())
      ++found;
  const int64_t most = count_argument(w, args, 2, "count");
  if (most >= 0) found = std::min(found, size_t(most));
  w.charge(found);
  w.charge_bytes(t.size() + found * by.size());
  return w.text(replace(t, old.bytes, by, most));
}

// startswith and endswith accept one text or several.
template <class F>
Value any_text(Workspace& w, const Args& args, F matches) {
  const Value* v = args.find(0, "prefix");
  if (v && list_of(*v))
    return std::ranges::any_of(list_of(*v)->items, [&](const Value& item) {
      if (!text_of(item)) w.fail("expected texts to search for, got {}", kind_of(item));
      return matches(text_of(item)->bytes);
    });
  return matches(text_argument(w, args, 0, "prefix")->bytes);
}

Value find_text(const MarkedText& t, size_t at) {
  if (at == std::string::npos) return int64_t(-1);
  return int64_t(char_count(std::string_view(t.bytes).substr(0, at)));
}

bool all_digits(std::string_view s) {
  return !s.empty() && s.find_first_not_of("0123456789") == std::string_view::npos;
}

int64_t occurrences(Workspace& w, const MarkedText& t, const std::string& part) {
  if (part.empty()) return int64_t(char_count(t.bytes)) + 1;
  w.charge_bytes(t.size());
  int64_t n = 0;
  for (size_t i = 0; (i = t.bytes.find(part, i)) != std::string::npos; i += part.size()) ++n;
  return n;
}

// str.format with plain fields: {}, {0}, {name}, and doubled braces for single ones.
Value format_text(Workspace& w, const MarkedText& t, const Args& args) {
  MarkedText out;
  size_t automatic = 0;
  for (size_t i = 0; i < t.size();) {
    const size_t brace = std::min(t.bytes.find_first_of("{}", i), t.size());
    out.add(t.part(i, brace - i));
    if (brace == t.size()) break;
    if (t.bytes.compare(brace, 2, "{{") == 0 || t.bytes.compare(brace, 2, "}}") == 0) {
      out.add(t.part(brace, 1));
      i = brace + 2;
      continue;
    }
    const size_t end = t.bytes.find('}', brace);
    if (t.bytes[brace] == '}' || end == std::string::npos)
      w.fail("expected matching braces in a format, got a single one");
    const std::string name = t.bytes.substr(brace + 1, end - brace - 1);
    const bool by_place = all_digits(name) && name.size() < 4;
    const size_t place = name.empty() ? automatic++ : by_place ? std::stoul(name) : SIZE_MAX;
    const Value* v = args.find(place, name);
    if (!v)
      w.fail("expected a format field without options that has a value, got {}", in_quotes(name));
    const MarkedText field = printed(w, *v);
    w.charge_bytes(field.size());
    out.add(field);
    i = end + 1;
  }
  return w.text(std::move(out));
}

// The method functions return nothing for an unknown name.
const std::optional<Value> no_such_method = std::nullopt;

std::optional<Value> text_method(Workspace& w, Text self, std::string_view name, const Args& args) {
  const MarkedText& t = *self;
  if (name == "strip") return strip_text(w, t, Side::both, args);
  if (name == "lstrip") return strip_text(w, t, Side::left, args);
  if (name == "rstrip") return strip_text(w, t, Side::right, args);
  if (name == "split") return split_text(w, t, Side::left, args);
  if (name == "rsplit") return split_text(w, t, Side::right, args);
  if (name == "splitlines") return list_of_texts(w, split_lines(t));
  if (name == "upper") return w.text(change_case(t, Case::upper));
  if (name == "lower") return w.text(change_case(t, Case::lower));
  if (name == "title") return w.text(change_case(t, Case::title));
  if (name == "capitalize") return w.text(change_case(t, Case::capitalize));
  if (name == "replace") return replace_text(w, t, args);
  if (name == "startswith")
    return any_text(w, args, [&](const std::string& s) { return t.bytes.starts_with(s); });
  if (name == "endswith")
    return any_text(w, args, [&](const std::string& s) { return t.bytes.ends_with(s); });
  if (name == "removeprefix") {
    const std::string& part = text_argument(w, args, 0, "prefix")->bytes;
    return t.bytes.starts_with(part) ? w.text(t.part(part.size())) : self;
  }
  if (name == "removesuffix") {
    const std::string& part = text_argument(w, args, 0, "suffix")->bytes;
    return t.bytes.ends_with(part) ? w.text(t.part(0, t.size() - part.size())) : self;
  }
  if (name == "find") return find_text(t, t.bytes.find(text_argument(w, args, 0, "sub")->bytes));
  if (name == "rfind") return find_text(t, t.bytes.rfind(text_argument(w, args, 0, "sub")->bytes));
  if (name == "count") return occurrences(w, t, text_argument(w, args, 0, "sub")->bytes);
  if (name == "format") return format_text(w, t, args);
  if (name == "isdigit") return all_digits(t.bytes);
  if (name == "join") {
    if (args.list.empty()) w.fail("expected a list to join, got nothing");
    return call_filter(w, "join", args.list[0], {{self}, {}});
  }
  return no_such_method;
}

std::optional<Value> map_method(Workspace& w, Map& m, std::string_view name, const Args& args) {
  if (name == "get") {
    const Value found = item_of(w, &m, text_argument(w, args, 0, "key"));
    const Value* otherwise = args.find(1, "default");
    return !is_undefined(found) ? found : otherwise ? *otherwise : Value(None());
  }
  if (name == "items") return call_filter(w, "items", &m, {});
  List* out = nullptr;
  if (name == "keys" || name == "values") {
    out = w.list();
    for (const auto& [key, value] : m.entries)
      out->items.push_back(name == "keys" ? Value(key) : value);
    w.charge(m.entries.size());
    return out;
  }
  return no_such_method;
}

std::optional<Value> list_method(Workspace& w, List& l, std::string_view name, const Args& args) {
  if (name == "append") {
    if (args.list.size() != 1) w.fail("expected one item to append, got {}", args.list.size());
    l.items.push_back(args.list[0]);
    return None();
  }
  if (name == "index" || name == "count") {
    if (args.list.size() != 1) w.fail("expected one item to search for, got {}", args.list.size());
    int64_t found = 0;
    for (size_t i = 0; i < l.items.size(); ++i) {
      if (!equal(w, l.items[i], args.list[0])) continue;
      if (name == "index") return int64_t(i);
      ++found;
    }
    if (name == "index") w.fail("the item is not in the list");
    return found;
  }
  return no_such_method;
}

Value raise_exception(Workspace& w, const Args& args) {
  w.fail("the chat template rejects the messages: {}",
         args.list.empty() ? "" : one_line(printed(w, args.list[0]).bytes));
}

Value strftime_now(Workspace& w, const Args& args) {
  const std::string format = text_argument(w, args, 0, "format")->bytes;
  if (format.empty() || format.size() > 200)
    w.fail("expected a time format of 1 to 200 bytes, got {}", format.size());
  std::tm local{};
  localtime_r(&w.now, &local);
  std::string out(8192, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &local));
  return w.text(out);
}

Value make_range(Workspace& w, const Args& args) {
  int64_t bounds[3] = {0, 0, 1};
  if (args.list.empty() || args.list.size() > 3)
    w.fail("expected one to three numbers for range, got {}", args.list.size());
  for (size_t i = 0; i < args.list.size(); ++i) {
    if (!as<int64_t>(args.list[i]))
      w.fail("expected whole numbers for range, got {}", kind_of(args.list[i]));
    bounds[args.list.size() == 1 ? 1 : i] = *as<int64_t>(args.list[i]);
  }
  auto [i, end, step] = bounds;
  if (step == 0) w.fail("expected a step other than 0 for range, got 0");
  List* out = w.list();
  while (step > 0 ? i < end : i > end) {
    w.charge(1);
    out->items.push_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return out;
}

Value make_map(Workspace& w, const Args& args, bool is_namespace) {
  Map* m = w.map();
  m->is_namespace = is_namespace;
  if (!args.list.empty()) {
    const Map* from = map_of(args.list[0]);
    if (!from) w.fail("expected a mapping to copy, got {}", kind_of(args.list[0]));
    w.charge(from->entries.size());
    m->entries = from->entries;
  }
  for (const auto& [name, value] : args.named) {
    w.charge(m->entries.size());
    m->set(w.text(name), value);
  }
  return m;
}

}  // namespace

Value call_method(Workspace& w, const Value& object, std::string_view name, const Args& args) {
  w.charge(1);
  std::optional<Value> result;
  if (const Text t = text_of(object)) result = text_method(w, t, name, args);
  if (List* l = list_of(object)) result = list_method(w, *l, name, args);
  if (Map* m = map_of(object)) {
    if (!m->is_namespace) result = map_method(w, *m, name, args);
    const Value* member = result ? nullptr : m->find(name);
    if (member && as<Callable*>(*member)) result = std::get<Callable*>(*member)->call(args);
  }
  if (result) return *result;
  if (const auto* u = as<Undefined>(object))
    w.fail("cannot call {}: {} is undefined", in_quotes(name), u->name);
  w.fail("expected a known method of {}, got {}", kind_of(object), in_quotes(name));
}

Callable* function_named(Workspace& w, std::string_view name) {
  const auto make = [&](Value (*f)(Workspace&, const Args&)) {
    return w.callable(name, [&w, f](const Args& args) { return f(w, args); });
  };
  if (name == "raise_exception") return make(raise_exception);
  if (name == "strftime_now") return make(strftime_now);
  if (name == "range") return make(make_range);
  if (name == "namespace")
    return make([](Workspace& x, const Args& a) { return make_map(x, a, true); });
  if (name == "dict")
    return make([](Workspace& x, const Args& a) { return make_map(x, a, false); });
  return nullptr;
}

}  // namespace hearth::jinja
