// Runs a parsed template: evaluates expressions to values and statements to marked text.
#pragma once

#include <memory>

#include "text/chat/ast.h"

namespace hearth::jinja {

// The variables of a block, with a link to the enclosing block. Macros keep their scope alive.
struct Scope {
  std::shared_ptr<Scope> outer = {};
  std::vector<std::pair<std::string_view, Value>> names = {};
  const Value* find(Workspace&, std::string_view) const;
  void set(Workspace&, std::string_view, Value);
};
using ScopePtr = std::shared_ptr<Scope>;

class Renderer {
 public:
  Renderer(Workspace& w, ScopePtr globals) : w_(w), scope_(std::move(globals)), out_(&text_) {}
  MarkedText render(const Block&);

 private:
  enum class Flow { on, leave, next };

  Value eval(const Expr&);
  Value eval_name(const Expr&);
  Value eval_slice(const Expr&);
  Value eval_map(const Expr&);
  Value eval_compare(const Expr&);
  Value eval_attribute(const Expr&);
  Value eval_call(const Expr&, const Value* caller = nullptr);
  Args eval_arguments(const Expr&);

  Flow exec(const Block&);
  Flow exec(const Stmt&);
  void exec_set(const Stmt&);
  Flow exec_loop(const Stmt&);
  Flow exec_body(const Stmt&);  // set_block, filter, with, generation
  void exec_call(const Stmt&);
  Value make_macro(const Stmt&, std::string_view name);
  Value call_macro(const Stmt&, const ScopePtr& home, const Args&);
  void assign(const std::vector<std::string>& targets, const Value&);
  void assign_attribute(const Stmt&, const Value&);
  void print(const MarkedText&);
  MarkedText captured(const Block&, Flow&);  // the output of a body

  // Makes a new scope inside `outer` current during its lifetime.
  class Inside {
   public:
    Inside(Renderer& r, ScopePtr outer)
        : r_(r),
          before_(std::exchange(r.scope_, std::make_shared<Scope>(Scope{std::move(outer)}))) {}
    ~Inside() { r_.scope_ = std::move(before_); }
    Inside(const Inside&) = delete;

   private:
    Renderer& r_;
    ScopePtr before_;
  };

  Workspace& w_;
  ScopePtr scope_;
  MarkedText text_;
  MarkedText* out_;
};

}  // namespace hearth::jinja
