// Template values and the workspace of one rendering: its allocations (all freed together, so
// values may be plain pointers and cycles are harmless) and its limits.
#pragma once

#include <cstdint>
#include <ctime>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "sys/error.h"
#include "text/chat/marked_text.h"

namespace hearth::jinja {

struct List;
struct Map;
struct Callable;

struct Undefined {
  std::string_view name;  // the missing name, for errors
};
struct None {};
using Text = const MarkedText*;
using Value = std::variant<Undefined, None, bool, int64_t, double, Text, List*, Map*, Callable*>;

struct List {
  std::vector<Value> items;
  bool tuple = false;
};

// A mapping in insertion order, or a namespace.
struct Map {
  std::vector<std::pair<Text, Value>> entries;
  bool is_namespace = false;
  Value* find(std::string_view key);
  void set(Text key, Value);
};

struct Args {
  std::vector<Value> list;
  std::vector<std::pair<std::string_view, Value>> named;
  // By position, else by name; null if not given.
  const Value* find(size_t place, std::string_view name) const;
};

struct Callable {
  std::string_view name;
  std::function<Value(const Args&)> call;
};

struct Limits {
  size_t template_bytes = 1 << 20;
  size_t output_bytes = 8 << 20;
  size_t steps = 500'000;  // evaluated nodes, visited elements, 32-byte units of text
  int nesting = 150;       // of brackets and blocks in the template
  int depth = 500;         // of evaluation, including calls
};

template <class T>
const T* as(const Value& v) {
  return std::get_if<T>(&v);
}
inline Text text_of(const Value& v) { return as<Text>(v) ? *as<Text>(v) : nullptr; }
inline List* list_of(const Value& v) { return as<List*>(v) ? *as<List*>(v) : nullptr; }
inline Map* map_of(const Value& v) { return as<Map*>(v) ? *as<Map*>(v) : nullptr; }
inline bool is_undefined(const Value& v) { return as<Undefined>(v) != nullptr; }
inline bool is_none(const Value& v) { return as<None>(v) != nullptr; }
inline bool is_number(const Value& v) { return as<bool>(v) || as<int64_t>(v) || as<double>(v); }

class Workspace {
 public:
  Workspace(const Limits& limits, std::string_view where) : limits(limits), where_(where) {}
  Workspace(const Workspace&) = delete;

  const Limits limits;
  int line = 0;                          // template line being evaluated
  int depth = 0;                         // of evaluation
  std::time_t now = std::time(nullptr);  // for strftime_now

  void charge(size_t steps) {
    if ((spent_ += steps) > limits.steps) fail("expected at most {} steps, got more", limits.steps);
  }
  Text text(MarkedText t) {
    charge_bytes(t.size());
    return &texts_.emplace_back(std::move(t));
  }
  Text text(std::string_view t) { return text(MarkedText(t)); }
  void charge_bytes(size_t bytes) { charge(1 + bytes / 32); }
  List* list(std::vector<Value> items = {}, bool tuple = false) {
    charge(1 + items.size());
    return &lists_.emplace_back(List{std::move(items), tuple});
  }
  Map* map() {
    charge(1);
    return &maps_.emplace_back();
  }
  Callable* callable(std::string_view name, std::function<Value(const Args&)> call) {
    charge(1);
    return &callables_.emplace_back(Callable{name, std::move(call)});
  }

  template <class... A>
  [[noreturn]] void fail(fmt::format_string<A...> what, A&&... args) const {
    throw Error(fmt::format("{}:{}", where_, line), fmt::format(what, std::forward<A>(args)...));
  }

 private:
  std::string_view where_;
  size_t spent_ = 0;
  std::deque<MarkedText> texts_;
  std::deque<List> lists_;
  std::deque<Map> maps_;
  std::deque<Callable> callables_;
};

// Adds one level of depth during its lifetime.
class Deeper {
 public:
  explicit Deeper(Workspace& w) : w_(w) {
    if (++w_.depth > w_.limits.depth) {
      --w_.depth;
      w_.fail("expected nesting of at most {}, got more", w_.limits.depth);
    }
  }
  ~Deeper() { --w_.depth; }
  Deeper(const Deeper&) = delete;

 private:
  Workspace& w_;
};

// With Python's semantics (value.cpp).
std::string_view kind_of(const Value&);  // "text", "a list", ...
bool truth(const Value&);
bool equal(Workspace&, const Value&, const Value&);
bool less(Workspace&, const Value&, const Value&);
bool contains(Workspace&, const Value& container, const Value& item);
std::vector<Value> elements(Workspace&, const Value&);  // the elements that a loop visits
int64_t length(Workspace&, const Value&);

// Conversion to text (print.cpp).
MarkedText printed(Workspace&, const Value&);  // Python's str(); an undefined value is empty
struct JsonStyle {
  int indent = -1;  // -1: one line
  bool ascii = false, sort_keys = false;
  std::string item_separator, key_separator = ": ";
};
MarkedText to_json(Workspace&, const Value&, const JsonStyle&);

// Operators, filters, tests, methods and functions by name; each group has its own file.
enum class Op {
  add,
  sub,
  mul,
  div,
  floor_div,
  mod,
  pow,
  concat,
  eq,
  ne,
  lt,
  le,
  gt,
  ge,
  in,
  not_in
};
Value apply(Workspace&, Op, const Value&, const Value&);
Value item_of(Workspace&, const Value& object, const Value& key);  // object[key]
Value slice_of(Workspace&, const Value& object, const Value (&bounds)[3]);
Value call_filter(Workspace&, std::string_view name, const Value& input, const Args&);
bool call_test(Workspace&, std::string_view name, const Value& input, const Args&);
Value call_method(Workspace&, const Value& object, std::string_view name, const Args&);
// raise_exception, strftime_now, range, namespace, dict; null for any other name.
Callable* function_named(Workspace&, std::string_view name);

}  // namespace hearth::jinja
