// Template tests: x is name(arguments).
#include <algorithm>

#include "formats/json.h"
#include "text/chat/python_str.h"
#include "text/chat/value.h"

namespace hearth::jinja {
namespace {

using Predicate = bool (*)(Workspace&, const Value&, const Args&);

const Value& operand(Workspace& w, const Args& args) {
  const Value* v = args.find(0, "other");
  if (!v) w.fail("expected a value to compare with, got none");
  return *v;
}

int64_t whole_number(Workspace& w, const Value& v) {
  if (const auto* i = as<int64_t>(v)) return *i;
  w.fail("expected a whole number, got {}", kind_of(v));
}

template <Op op>
bool compares(Workspace& w, const Value& v, const Args& args) {
  return truth(apply(w, op, v, operand(w, args)));
}

template <Case wanted>
bool in_case(Workspace&, const Value& v, const Args&) {
  const Text t = text_of(v);
  return t && change_case(*t, wanted).bytes == t->bytes;
}

template <class T>
bool holds(Workspace&, const Value& v, const Args&) {
  return as<T>(v) != nullptr;
}

bool is_defined(Workspace&, const Value& v, const Args&) { return !is_undefined(v); }
bool is_mapping(Workspace&, const Value& v, const Args&) {
  return map_of(v) && !map_of(v)->is_namespace;
}
bool is_sequence(Workspace& w, const Value& v, const Args& args) {
  return text_of(v) || list_of(v) || is_mapping(w, v, args) || is_undefined(v);
}
template <bool wanted>
bool is_bool(Workspace&, const Value& v, const Args&) {
  return as<bool>(v) && *as<bool>(v) == wanted;
}
bool is_odd(Workspace& w, const Value& v, const Args&) { return whole_number(w, v) % 2 != 0; }
bool is_even(Workspace& w, const Value& v, const Args&) { return whole_number(w, v) % 2 == 0; }
bool is_divisible(Workspace& w, const Value& v, const Args& args) {
  return !truth(apply(w, Op::mod, v, operand(w, args)));
}
bool is_same(Workspace& w, const Value& v, const Args& args) {
  const Value& other = operand(w, args);
  if (v.index() != other.index()) return false;
  if (list_of(v) || map_of(v)) return list_of(v) == list_of(other) && map_of(v) == map_of(other);
  return equal(w, v, other);
}

struct NamedPredicate {
  std::string_view name;
  Predicate test;
};
constexpr NamedPredicate predicates[] = {
    {"defined", is_defined},
    {"undefined", holds<Undefined>},
    {"none", holds<None>},
    {"string", holds<Text>},
    {"mapping", is_mapping},
    {"iterable", is_sequence},
    {"sequence", is_sequence},
    {"number", [](Workspace&, const Value& v, const Args&) { return is_number(v); }},
    {"integer", holds<int64_t>},
    {"float", holds<double>},
    {"boolean", holds<bool>},
    {"true", is_bool<true>},
    {"false", is_bool<false>},
    {"callable", holds<Callable*>},
    {"odd", is_odd},
    {"even", is_even},
    {"divisibleby", is_divisible},
    {"sameas", is_same},
    {"upper", in_case<Case::upper>},
    {"lower", in_case<Case::lower>},
    {"in", compares<Op::in>},
    {"equalto", compares<Op::eq>},
    {"eq", compares<Op::eq>},
    {"==", compares<Op::eq>},
    {"ne", compares<Op::ne>},
    {"!=", compares<Op::ne>},
    {"lt", compares<Op::lt>},
    {"lessthan", compares<Op::lt>},
    {"<", compares<Op::lt>},
    {"le", compares<Op::le>},
    {"<=", compares<Op::le>},
    {"gt", compares<Op::gt>},
    {"greaterthan", compares<Op::gt>},
    {">", compares<Op::gt>},
    {"ge", compares<Op::ge>},
    {">=", compares<Op::ge>},
};

}  // namespace

bool call_test(Workspace& w, std::string_view name, const Value& input, const Args& args) {
  const auto* found = std::ranges::find(predicates, name, &NamedPredicate::name);
  if (found == std::end(predicates)) w.fail("expected a known test, got {}", in_quotes(name));
  return found->test(w, input, args);
}

}  // namespace hearth::jinja
