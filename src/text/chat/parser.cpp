// Parses the statements of a template.
#include <algorithm>

#include "formats/json.h"
#include "sys/error.h"
#include "text/chat/expressions.h"

namespace hearth::jinja {
namespace {

class Parser : ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Block run() {
    Block block = statements({});
    if (peek().kind != Token::Kind::end) complain("the end of the template");
    return block;
  }

 private:
  using Names = std::initializer_list<std::string_view>;
  using S = Stmt::Kind;

  // Parses up to a block tag named in `ends`; consumes the tag's start and name only.
  Block statements(Names ends) {
    const Nested nested(*this);
    Block block;
    for (;;) {
      const Token::Kind kind = peek().kind;
      if (kind == Token::Kind::text) {
        block.push_back({.kind = S::text, .line = peek().line});
        block.back().text = MarkedText(next().text);
      } else if (kind == Token::Kind::print_begin) {
        block.push_back({.kind = S::print, .line = next().line});
        block.back().value = expression_or_tuple();
        if (peek().kind != Token::Kind::print_end) complain("}}");
        next();
      } else if (kind == Token::Kind::block_begin) {
        next();
        if (std::ranges::any_of(ends, [&](std::string_view e) { return is_name(e); })) return block;
        statement(block);
      } else if (ends.size() == 0) {
        return block;
      } else {
        complain(fmt::format("{{% {} %}}", *(ends.end() - 1)));
      }
    }
  }

  void block_end() {
    if (peek().kind != Token::Kind::block_end) complain("%}");
    next();
  }
  // Parses the rest of the current tag and everything up to and including its end tag.
  Block body(std::string_view end) {
    block_end();
    Block block = statements({end});
    next();
    if (end == "endmacro" && peek().kind == Token::Kind::name)
      next();  // the macro's name may follow
    block_end();
    return block;
  }
  Block macro_body(std::string_view end) {
    const int loops = std::exchange(loops_, 0);  // break cannot leave a macro
    Block block = body(end);
    loops_ = loops;
    return block;
  }

  void statement(Block& block) {
    const int line = peek().line;
    const std::string name = need_identifier();
    Stmt s{.kind = S::text, .line = line};
    if (name == "set") {
      set(s);
    } else if (name == "for") {
      loop(s);
    } else if (name == "if") {
      branch(s);
    } else if (name == "macro") {
      s.kind = S::macro;
      s.name = need_identifier();
      parameters(s);
      s.body = macro_body("endmacro");
    } else if (name == "call") {
      s.kind = S::call;
      if (is_op("(")) parameters(s);
      s.value = expression();
      if (s.value->kind != Expr::Kind::call) complain("a call");
      s.body = macro_body("endcall");
    } else if (name == "filter") {
      s.kind = S::filter;
      s.value = filters(body_name(line), false);
      s.body = body("endfilter");
    } else if (name == "with") {
      with(s);
    } else if (name == "generation") {
      s.kind = S::generation;
      s.body = body("endgeneration");
    } else if (name == "break" || name == "continue") {
      if (loops_ == 0) complain(fmt::format("{} inside a loop", name));
      s.kind = name == "break" ? S::leave : S::next;
      block_end();
    } else {
      refuse(line, "a known statement", in_quotes(name));
    }
    block.push_back(std::move(s));
  }

  // The input of a filter over a body: the evaluator stores the body's text under the empty name.
  static ExprPtr body_name(int line) {
    return std::make_unique<Expr>(Expr{.kind = Expr::Kind::name, .line = line});
  }

  void set(Stmt& s) {
    s.kind = S::set;
    s.targets.push_back(need_identifier());
    if (take_op("."))
      s.name = need_identifier();
    else
      while (take_op(",")) s.targets.push_back(need_identifier());
    if (take_op("=")) {
      s.value = expression_or_tuple();
      return block_end();
    }
    if (s.targets.size() > 1) complain("=");
    s.kind = S::set_block;
    s.value = filters(body_name(s.line), true);
    s.body = body("endset");
  }

  void loop(Stmt& s) {
    s.kind = S::loop;
    const bool bracket = take_op("(");
    do s.targets.push_back(need_identifier());
    while (take_op(","));
    if (bracket) need_op(")");
    if (!take_name("in")) complain("in");
    s.value = disjunction();
    if (is_op(",")) {
      ExprPtr tuple = std::make_unique<Expr>(Expr{.kind = Expr::Kind::tuple, .line = s.line});
      tuple->parts.push_back(std::move(s.value));
      while (take_op(",")) tuple->parts.push_back(disjunction());
      s.value = std::move(tuple);
    }
    if (take_name("if")) s.condition = expression();
    block_end();
    ++loops_;
    s.body = statements({"else", "endfor"});
    --loops_;
    if (take_name("else")) {
      block_end();
      s.otherwise = statements({"endfor"});
    }
    next();
    block_end();
  }

  void branch(Stmt& s) {
    s.kind = S::branch;
    ExprPtr condition = expression();
    for (;;) {
      block_end();
      s.branches.emplace_back(std::move(condition), statements({"elif", "else", "endif"}));
      if (take_name("endif")) return block_end();
      if (!take_name("elif")) break;
      condition = expression();
    }
    next();  // else
    block_end();
    s.branches.emplace_back(nullptr, statements({"endif"}));
    next();
    block_end();
  }

  void parameters(Stmt& s) {
    need_op("(");
    while (!is_op(")")) {
      Parameter p{need_identifier(), nullptr};
      if (take_op("=")) p.otherwise = expression();
      s.parameters.push_back(std::move(p));
      if (!take_op(",")) break;
    }
    need_op(")");
  }

  void with(Stmt& s) {
    s.kind = S::with;
    while (peek().kind == Token::Kind::name) {
      Parameter p{need_identifier(), nullptr};
      need_op("=");
      p.otherwise = expression();
      s.parameters.push_back(std::move(p));
      if (!take_op(",")) break;
    }
    s.body = body("endwith");
  }

  int loops_ = 0;
};

}  // namespace

Block parse_template(std::string_view source, std::string_view where, const Limits& limits) {
  if (source.size() > limits.template_bytes)
    fail(where, "expected a template of at most {} bytes, got {}", limits.template_bytes,
         source.size());
  return Parser(tokenize(source, where), where, limits).run();
}

}  // namespace hearth::jinja
