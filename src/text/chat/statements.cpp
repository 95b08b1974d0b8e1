#include <algorithm>

#include "formats/json.h"
#include "text/chat/renderer.h"

namespace hearth::jinja {
namespace {

// The `loop` variable of a for statement. One mapping is updated in place for every iteration.
class LoopValues {
 public:
  LoopValues(Workspace& w, const std::vector<Value>& items) : items_(items), map_(w.map()) {
    for (const char* name : {"index", "index0", "revindex", "revindex0", "first", "last", "length",
                             "previtem", "nextitem"})
      map_->entries.emplace_back(w.text(std::string_view(name)), None());
  }
  Map* at(size_t i) {
    const auto n = int64_t(items_.size()), index = int64_t(i);
    const Value values[] = {
        index + 1,
        index,
        n - index,
        n - index - 1,
        index == 0,
        index + 1 == n,
        n,
        i > 0 ? items_[i - 1] : Value(Undefined{"loop.previtem"}),
        i + 1 < items_.size() ? items_[i + 1] : Value(Undefined{"loop.nextitem"})};
    for (size_t k = 0; k < std::size(values); ++k) map_->entries[k].second = values[k];
    return map_;
  }

 private:
  const std::vector<Value>& items_;
  Map* map_;
};

}  // namespace

MarkedText Renderer::render(const Block& block) {
  exec(block);
  return std::move(text_);
}

void Renderer::print(const MarkedText& t) {
  w_.charge_bytes(t.size());
  if (out_->size() + t.size() > w_.limits.output_bytes)
    w_.fail("expected at most {} bytes of output, got more", w_.limits.output_bytes);
  out_->add(t);
}

Renderer::Flow Renderer::exec(const Block& block) {
  const Deeper deeper(w_);
  for (const Stmt& s : block)
    if (const Flow flow = exec(s); flow != Flow::on) return flow;
  return Flow::on;
}

Renderer::Flow Renderer::exec(const Stmt& s) {
  using Kind = Stmt::Kind;
  w_.charge(1);
  w_.line = s.line;
  switch (s.kind) {
    case Kind::text:
      print(s.text);
      break;
    case Kind::print:
      print(printed(w_, eval(*s.value)));
      break;
    case Kind::set:
      exec_set(s);
      break;
    case Kind::loop:
      return exec_loop(s);
    case Kind::branch:
      for (const auto& [condition, body] : s.branches)
        if (!condition || truth(eval(*condition))) return exec(body);
      break;
    case Kind::macro:
      scope_->set(w_, s.name, make_macro(s, s.name));
      break;
    case Kind::call:
      exec_call(s);
      break;
    case Kind::leave:
      return Flow::leave;
    case Kind::next:
      return Flow::next;
    default:
      return exec_body(s);
  }
  return Flow::on;
}

MarkedText Renderer::captured(const Block& body, Flow& flow) {
  MarkedText text;
  MarkedText* before = std::exchange(out_, &text);
  flow = exec(body);
  out_ = before;
  return text;
}

Renderer::Flow Renderer::exec_body(const Stmt& s) {
  Flow flow = Flow::on;
  if (s.kind == Stmt::Kind::generation) {
    const size_t start = out_->size();
    flow = exec(s.body);
    for (size_t i = start; i < out_->size(); ++i) out_->marks[i] |= mark::answer;
    return flow;
  }
  if (s.kind == Stmt::Kind::with) {
    std::vector<Value> values;  // evaluated in the outer scope
    for (const Parameter& p : s.parameters) values.push_back(eval(*p.otherwise));
    const Inside inside(*this, scope_);
    for (size_t i = 0; i < values.size(); ++i) scope_->set(w_, s.parameters[i].name, values[i]);
    return exec(s.body);
  }
  Value result;
  {
    const Inside inside(*this, scope_);
    const Value text = w_.text(captured(s.body, flow));
    scope_->set(w_, "", text);
    result = eval(*s.value);
  }
  if (flow != Flow::on) return flow;
  if (s.kind == Stmt::Kind::filter)
    print(printed(w_, result));
  else if (s.name.empty())
    scope_->set(w_, s.targets[0], result);
  else
    assign_attribute(s, result);
  return flow;
}

void Renderer::assign(const std::vector<std::string>& targets, const Value& value) {
  if (targets.size() == 1) return scope_->set(w_, targets[0], value);
  const std::vector<Value> parts = elements(w_, value);
  if (parts.size() != targets.size())
    w_.fail("expected {} values to unpack, got {}", targets.size(), parts.size());
  for (size_t i = 0; i < parts.size(); ++i) scope_->set(w_, targets[i], parts[i]);
}

void Renderer::assign_attribute(const Stmt& s, const Value& value) {
  const Value* object = scope_->find(w_, s.targets[0]);
  Map* m = object ? map_of(*object) : nullptr;
  if (!m || !m->is_namespace)
    w_.fail("expected {} to be a namespace, got {}", s.targets[0],
            object ? kind_of(*object) : "nothing");
  w_.charge(m->entries.size() / 8);
  m->set(w_.text(s.name), value);
}

void Renderer::exec_set(const Stmt& s) {
  const Value value = eval(*s.value);
  if (s.name.empty())
    assign(s.targets, value);
  else
    assign_attribute(s, value);
}

Renderer::Flow Renderer::exec_loop(const Stmt& s) {
  std::vector<Value> items = elements(w_, eval(*s.value));
  if (s.condition)
    std::erase_if(items, [&](const Value& item) {
      const Inside inside(*this, scope_);
      assign(s.targets, item);
      return !truth(eval(*s.condition));
    });
  if (items.empty()) return exec(s.otherwise);
  LoopValues loop(w_, items);
  for (size_t i = 0; i < items.size(); ++i) {
    const Inside inside(*this, scope_);
    w_.charge(4);
    scope_->set(w_, "loop", loop.at(i));
    assign(s.targets, items[i]);
    if (exec(s.body) == Flow::leave) break;
  }
  return Flow::on;
}

Value Renderer::make_macro(const Stmt& s, std::string_view name) {
  return w_.callable(
      name, [this, &s, home = scope_](const Args& args) { return call_macro(s, home, args); });
}

Value Renderer::call_macro(const Stmt& s, const ScopePtr& home, const Args& args) {
  const Deeper deeper(w_);
  if (args.list.size() > s.parameters.size())
    w_.fail("expected at most {} arguments for {}, got {}", s.parameters.size(),
            s.name.empty() ? "caller" : s.name, args.list.size());
  const Inside inside(*this, home);
  for (const auto& [name, value] : args.named) {
    const bool known =
        name == "caller" ||
        std::ranges::find(s.parameters, name, &Parameter::name) != s.parameters.end();
    if (!known) w_.fail("expected a parameter of {}, got {}", s.name, in_quotes(name));
    scope_->set(w_, name, value);
  }
  for (size_t i = 0; i < s.parameters.size(); ++i) {
    const Parameter& p = s.parameters[i];
    const Value* given = args.find(i, p.name);
    scope_->set(w_, p.name,
                given         ? *given
                : p.otherwise ? eval(*p.otherwise)
                              : Value(Undefined{p.name}));
  }
  Flow flow;
  return w_.text(captured(s.body, flow));
}

void Renderer::exec_call(const Stmt& s) {
  const Value caller = make_macro(s, "caller");
  print(printed(w_, eval_call(*s.value, &caller)));
}

}  // namespace hearth::jinja
