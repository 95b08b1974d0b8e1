// Evaluates expressions; statements.cpp runs statements.
#include "text/chat/renderer.h"

#include "formats/json.h"

namespace hearth::jinja {

const Value* Scope::find(Workspace& w, std::string_view name) const {
  for (const Scope* s = this; s; s = s->outer.get()) {
    w.charge(s->names.size() / 8);
    for (const auto& [key, value] : s->names)
      if (key == name) return &value;
  }
  return nullptr;
}

void Scope::set(Workspace& w, std::string_view name, Value value) {
  w.charge(names.size() / 8);
  for (auto& [key, old] : names)
    if (key == name) {
      old = value;
      return;
    }
  names.emplace_back(name, value);
}

Value Renderer::eval(const Expr& e) {
  const Deeper deeper(w_);
  w_.charge(1);
  w_.line = e.line;
  using Kind = Expr::Kind;
  switch (e.kind) {
    case Kind::literal:
      return e.value;
    case Kind::name:
      return eval_name(e);
    case Kind::list:
    case Kind::tuple: {
      std::vector<Value> items;
      for (const ExprPtr& part : e.parts) items.push_back(eval(*part));
      return w_.list(std::move(items), e.kind == Kind::tuple);
    }
    case Kind::map:
      return eval_map(e);
    case Kind::negative:
      return apply(w_, Op::sub, int64_t(0), eval(*e.parts[0]));
    case Kind::negation:
      return !truth(eval(*e.parts[0]));
    case Kind::binary: {
      const Value left = eval(*e.parts[0]), right = eval(*e.parts[1]);
      return apply(w_, e.ops[0], left, right);
    }
    case Kind::compare:
      return eval_compare(e);
    case Kind::both: {
      const Value left = eval(*e.parts[0]);
      return truth(left) ? eval(*e.parts[1]) : left;
    }
    case Kind::either: {
      const Value left = eval(*e.parts[0]);
      return truth(left) ? left : eval(*e.parts[1]);
    }
    case Kind::choice:
      if (truth(eval(*e.parts[0]))) return eval(*e.parts[1]);
      return e.parts[2] ? eval(*e.parts[2]) : Undefined{"a conditional without else"};
    case Kind::attribute:
      return eval_attribute(e);
    case Kind::item: {
      const Value object = eval(*e.parts[0]), key = eval(*e.parts[1]);
      return item_of(w_, object, key);
    }
    case Kind::slice:
      return eval_slice(e);
    case Kind::call:
      return eval_call(e);
    case Kind::filter: {
      const Value input = eval(*e.parts[0]);
      return call_filter(w_, e.name, input, eval_arguments(e));
    }
    case Kind::test: {
      const Value input = eval(*e.parts[0]);
      return call_test(w_, e.name, input, eval_arguments(e));
    }
  }
  w_.fail("expected an expression, got kind {}", int(e.kind));
}

Value Renderer::eval_name(const Expr& e) {
  if (const Value* v = scope_->find(w_, e.name)) return *v;
  if (Callable* f = function_named(w_, e.name)) return f;
  return Undefined{e.name};
}

Value Renderer::eval_slice(const Expr& e) {
  const Value object = eval(*e.parts[0]);
  Value bounds[3] = {None(), None(), None()};
  for (size_t i = 0; i < 3; ++i)
    if (e.parts[i + 1]) bounds[i] = eval(*e.parts[i + 1]);
  return slice_of(w_, object, bounds);
}

Value Renderer::eval_map(const Expr& e) {
  Map* m = w_.map();
  for (size_t i = 0; i < e.parts.size(); i += 2) {
    const Value key = eval(*e.parts[i]);
    if (!text_of(key)) w_.fail("expected text as a mapping's key, got {}", kind_of(key));
    w_.charge(m->entries.size() / 8);
    m->set(text_of(key), eval(*e.parts[i + 1]));
  }
  return m;
}

Value Renderer::eval_compare(const Expr& e) {
  Value left = eval(*e.parts[0]), result = true;
  for (size_t i = 0; i < e.ops.size() && truth(result); ++i) {
    const Value right = eval(*e.parts[i + 1]);
    result = apply(w_, e.ops[i], left, right);
    left = right;
  }
  return result;
}

Value Renderer::eval_attribute(const Expr& e) {
  const Value object = eval(*e.parts[0]);
  if (Map* m = map_of(object)) {
    w_.charge(m->entries.size() / 8);
    const Value* found = m->find(e.name);
    return found ? *found : Value(Undefined{e.name});
  }
  if (const auto* u = as<Undefined>(object))
    w_.fail("cannot read {}: {} is undefined", in_quotes(e.name), u->name);
  return Undefined{e.name};
}

Args Renderer::eval_arguments(const Expr& e) {
  Args args;
  for (size_t i = 1; i < e.parts.size(); ++i) args.list.push_back(eval(*e.parts[i]));
  for (const auto& [name, part] : e.named) args.named.emplace_back(name, eval(*part));
  return args;
}

Value Renderer::eval_call(const Expr& e, const Value* caller) {
  const Expr& callee = *e.parts[0];
  if (callee.kind == Expr::Kind::attribute && !caller) {
    const Value object = eval(*callee.parts[0]);
    return call_method(w_, object, callee.name, eval_arguments(e));
  }
  const Value f = eval(callee);
  if (!as<Callable*>(f)) {
    const std::string_view name = is_undefined(f) ? std::get<Undefined>(f).name : kind_of(f);
    w_.fail("expected a function to call, got {}{}", name,
            is_undefined(f) ? ", which is undefined" : "");
  }
  Args args = eval_arguments(e);
  if (caller) args.named.emplace_back("caller", *caller);
  return std::get<Callable*>(f)->call(args);
}

}  // namespace hearth::jinja
