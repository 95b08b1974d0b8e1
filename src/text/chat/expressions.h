// Parses expressions from the tokens of a template, with Jinja's precedence. The statement parser
// builds on it.
#pragma once

#include "text/chat/ast.h"
#include "text/chat/lexer.h"

namespace hearth::jinja {

class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, std::string_view where, const Limits& limits)
      : tokens_(std::move(tokens)), where_(where), limits_(limits) {}

 protected:
  using Kind = Expr::Kind;

  ExprPtr expression();                            // with `a if b else c`
  ExprPtr expression_or_tuple();                   // also `a, b` without parentheses
  ExprPtr disjunction();                           // without the conditional, as after `for x in`
  ExprPtr filters(ExprPtr input, bool bar_first);  // | name(...) | name(...)
  void arguments(Expr& call);                      // (a, b, name=c)

  const Token& peek(size_t ahead = 0) const;
  bool is_op(std::string_view) const;
  bool is_name(std::string_view, size_t ahead = 0) const;
  bool take_op(std::string_view);
  bool take_name(std::string_view);
  void need_op(std::string_view);
  std::string need_identifier();
  Token next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  [[noreturn]] void complain(std::string_view expected) const;  // reports the next token
  [[noreturn]] void refuse(int line, std::string_view expected, std::string_view got) const;

  // Counts the nesting level during its lifetime.
  struct Nested {
    explicit Nested(ExpressionParser& p);
    ~Nested() { --parser.nesting_; }
    Nested(const Nested&) = delete;
    ExpressionParser& parser;
  };

 private:
  template <class... P>
  ExprPtr make(Kind, P... parts);
  void add(Expr&, ExprPtr part);
  ExprPtr conjunction();
  ExprPtr negation();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filters);
  ExprPtr primary();
  ExprPtr literal();
  ExprPtr in_parentheses();
  ExprPtr list();
  ExprPtr map();
  ExprPtr postfix(ExprPtr);
  ExprPtr subscript(ExprPtr);
  ExprPtr filters_and_tests(ExprPtr);
  ExprPtr test(ExprPtr);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  std::string_view where_;
  const Limits& limits_;
};

}  // namespace hearth::jinja
