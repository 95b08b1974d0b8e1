#include "text/chat/expressions.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>

#include "formats/json.h"
#include "sys/error.h"

namespace hearth::jinja {
namespace {

struct OpSign {
  std::string_view sign;
  Op op;
};
constexpr OpSign sums[] = {{"+", Op::add}, {"-", Op::sub}};
constexpr OpSign products[] = {
    {"*", Op::mul}, {"/", Op::div}, {"//", Op::floor_div}, {"%", Op::mod}};
constexpr OpSign comparisons[] = {{"==", Op::eq}, {"!=", Op::ne}, {"<", Op::lt},
                                  {"<=", Op::le}, {">", Op::gt},  {">=", Op::ge}};

std::optional<Op> op_among(std::span<const OpSign> signs, const Token& t) {
  const auto it = std::ranges::find(signs, t.text, &OpSign::sign);
  if (t.kind != Token::Kind::op || it == signs.end()) return std::nullopt;
  return it->op;
}

}  // namespace

ExpressionParser::Nested::Nested(ExpressionParser& p) : parser(p) {
  if (p.nesting_ == p.limits_.nesting)
    p.refuse(p.peek().line, fmt::format("nesting of at most {}", p.limits_.nesting), "more");
  ++p.nesting_;
}

const Token& ExpressionParser::peek(size_t ahead) const {
  return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
}

void ExpressionParser::complain(std::string_view expected) const {
  constexpr std::string_view kinds[] = {
      "text", "{%", "%}", "{{", "}}", "", "", "", "", "", "the end of the template"};
  const Token& t = peek();
  const std::string_view kind = kinds[size_t(t.kind)];
  refuse(t.line, expected, kind.empty() ? in_quotes(t.text) : std::string(kind));
}

void ExpressionParser::refuse(int line, std::string_view expected, std::string_view got) const {
  fail(fmt::format("{}:{}", where_, line), "expected {}, got {}", expected, got);
}

bool ExpressionParser::is_op(std::string_view op) const {
  return peek().kind == Token::Kind::op && peek().text == op;
}
bool ExpressionParser::is_name(std::string_view name, size_t ahead) const {
  return peek(ahead).kind == Token::Kind::name && peek(ahead).text == name;
}
bool ExpressionParser::take_op(std::string_view op) { return is_op(op) && (next(), true); }
bool ExpressionParser::take_name(std::string_view name) { return is_name(name) && (next(), true); }
void ExpressionParser::need_op(std::string_view op) {
  if (!take_op(op)) complain(op);
}
std::string ExpressionParser::need_identifier() {
  if (peek().kind != Token::Kind::name) complain("a name");
  return next().text;
}

void ExpressionParser::add(Expr& e, ExprPtr part) {
  if (part) e.depth = std::max(e.depth, part->depth + 1);
  if (e.depth > limits_.nesting)
    refuse(e.line, fmt::format("an expression of at most {} levels", limits_.nesting), "more");
  e.parts.push_back(std::move(part));
}

template <class... P>
ExprPtr ExpressionParser::make(Kind kind, P... parts) {
  auto e = std::make_unique<Expr>(Expr{.kind = kind, .line = peek().line});
  (add(*e, std::move(parts)), ...);
  return e;
}

ExprPtr ExpressionParser::expression_or_tuple() {
  ExprPtr first = expression();
  if (!is_op(",")) return first;
  ExprPtr tuple = make(Kind::tuple, std::move(first));
  while (take_op(",") && peek().kind != Token::Kind::block_end && !is_op("="))
    add(*tuple, expression());
  return tuple;
}

ExprPtr ExpressionParser::expression() {
  const Nested nested(*this);
  ExprPtr e = disjunction();
  while (take_name("if")) {
    ExprPtr condition = disjunction();
    ExprPtr otherwise = take_name("else") ? expression() : nullptr;
    e = make(Kind::choice, std::move(condition), std::move(e), std::move(otherwise));
  }
  return e;
}

ExprPtr ExpressionParser::disjunction() {
  ExprPtr e = conjunction();
  while (take_name("or")) e = make(Kind::either, std::move(e), conjunction());
  return e;
}

ExprPtr ExpressionParser::conjunction() {
  ExprPtr e = negation();
  while (take_name("and")) e = make(Kind::both, std::move(e), negation());
  return e;
}

ExprPtr ExpressionParser::negation() {
  if (!is_name("not") || is_name("in", 1)) return comparison();
  const Nested nested(*this);
  next();
  return make(Kind::negation, negation());
}

ExprPtr ExpressionParser::comparison() {
  ExprPtr e = sum();
  ExprPtr chain;
  for (;;) {
    std::optional<Op> op = op_among(comparisons, peek());
    if (is_name("in")) op = Op::in;
    if (is_name("not") && is_name("in", 1)) {
      op = Op::not_in;
      next();
    }
    if (!op) return chain ? std::move(chain) : std::move(e);
    next();
    if (!chain) chain = make(Kind::compare, std::move(e));
    chain->ops.push_back(*op);
    add(*chain, sum());
  }
}

ExprPtr ExpressionParser::sum() {
  ExprPtr e = concatenation();
  while (const auto op = op_among(sums, peek())) {
    next();
    e = make(Kind::binary, std::move(e), concatenation());
    e->ops = {*op};
  }
  return e;
}

ExprPtr ExpressionParser::concatenation() {
  ExprPtr e = product();
  while (take_op("~")) {
    e = make(Kind::binary, std::move(e), product());
    e->ops = {Op::concat};
  }
  return e;
}

ExprPtr ExpressionParser::product() {
  ExprPtr e = power();
  while (const auto op = op_among(products, peek())) {
    next();
    e = make(Kind::binary, std::move(e), power());
    e->ops = {*op};
  }
  return e;
}

ExprPtr ExpressionParser::power() {
  ExprPtr e = unary(true);
  while (take_op("**")) {
    e = make(Kind::binary, std::move(e), unary(true));
    e->ops = {Op::pow};
  }
  return e;
}

ExprPtr ExpressionParser::unary(bool with_filters) {
  const Nested nested(*this);
  ExprPtr e;
  if (take_op("-"))
    e = make(Kind::negative, unary(false));
  else if (take_op("+"))
    e = unary(false);
  else
    e = primary();
  e = postfix(std::move(e));
  return with_filters ? filters_and_tests(std::move(e)) : std::move(e);
}

ExprPtr ExpressionParser::primary() {
  if (is_op("(")) return in_parentheses();
  if (is_op("[")) return list();
  if (is_op("{")) return map();
  return literal();
}

ExprPtr ExpressionParser::literal() {
  ExprPtr e = make(Kind::literal);
  const Token t = peek();
  const char *begin = t.text.data(), *end = begin + t.text.size();
  if (t.kind == Token::Kind::string) {
    while (peek().kind == Token::Kind::string) e->text.add(next().text);
    e->value = &e->text;
    return e;
  }
  if (t.kind == Token::Kind::integer) {
    int64_t i = 0;
    if (std::from_chars(begin, end, i).ec != std::errc()) complain("a 64-bit integer");
    e->value = i;
  } else if (t.kind == Token::Kind::real) {
    double d = 0;
    if (std::from_chars(begin, end, d).ec != std::errc()) complain("a 64-bit float");
    e->value = d;
  } else if (t.kind != Token::Kind::name) {
    complain("an expression");
  } else if (t.text == "true" || t.text == "True") {
    e->value = true;
  } else if (t.text == "false" || t.text == "False") {
    e->value = false;
  } else if (t.text != "none" && t.text != "None") {
    e->kind = Kind::name;
    e->name = t.text;
  }
  next();
  return e;
}

ExprPtr ExpressionParser::in_parentheses() {
  need_op("(");
  if (take_op(")")) return make(Kind::tuple);
  ExprPtr e = expression();
  if (is_op(",")) {
    e = make(Kind::tuple, std::move(e));
    while (take_op(",") && !is_op(")")) add(*e, expression());
  }
  need_op(")");
  return e;
}

ExprPtr ExpressionParser::list() {
  ExprPtr e = make(Kind::list);
  need_op("[");
  while (!is_op("]")) {
    add(*e, expression());
    if (!take_op(",")) break;
  }
  need_op("]");
  return e;
}

ExprPtr ExpressionParser::map() {
  ExprPtr e = make(Kind::map);
  need_op("{");
  while (!is_op("}")) {
    add(*e, expression());
    need_op(":");
    add(*e, expression());
    if (!take_op(",")) break;
  }
  need_op("}");
  return e;
}

ExprPtr ExpressionParser::postfix(ExprPtr e) {
  for (;;) {
    if (take_op(".")) {
      if (peek().kind == Token::Kind::integer) {
        ExprPtr index = literal();
        e = make(Kind::item, std::move(e), std::move(index));
        continue;
      }
      std::string name = need_identifier();
      e = make(Kind::attribute, std::move(e));
      e->name = std::move(name);
    } else if (take_op("[")) {
      e = subscript(std::move(e));
    } else if (is_op("(")) {
      e = make(Kind::call, std::move(e));
      arguments(*e);
    } else {
      return e;
    }
  }
}

// After the opening bracket: an item, or a slice if there is a colon.
ExprPtr ExpressionParser::subscript(ExprPtr object) {
  ExprPtr bounds[3];
  size_t n = 0;
  for (bool more = true; more; more = n < 3 && take_op(":")) {
    if (!is_op(":") && !is_op("]")) bounds[n] = expression();
    ++n;
  }
  if (n == 1 && !bounds[0]) complain("an item");
  need_op("]");
  if (n == 1) return make(Kind::item, std::move(object), std::move(bounds[0]));
  return make(Kind::slice, std::move(object), std::move(bounds[0]), std::move(bounds[1]),
              std::move(bounds[2]));
}

void ExpressionParser::arguments(Expr& call) {
  need_op("(");
  while (!is_op(")")) {
    const bool named =
        peek().kind == Token::Kind::name && peek(1).kind == Token::Kind::op && peek(1).text == "=";
    if (named) {
      std::string name = next().text;
      next();
      call.named.emplace_back(std::move(name), expression());
      call.depth = std::max(call.depth, call.named.back().second->depth + 1);
    } else if (call.named.empty()) {
      add(call, expression());
    } else {
      complain("positional arguments before named ones");
    }
    if (!take_op(",")) break;
  }
  need_op(")");
}

ExprPtr ExpressionParser::filters(ExprPtr e, bool bar_first) {
  while (!bar_first || take_op("|")) {
    bar_first = true;
    std::string name = need_identifier();
    e = make(Kind::filter, std::move(e));
    e->name = std::move(name);
    if (is_op("(")) arguments(*e);
  }
  return e;
}

ExprPtr ExpressionParser::filters_and_tests(ExprPtr e) {
  for (;;) {
    if (is_op("|"))
      e = filters(std::move(e), true);
    else if (take_name("is"))
      e = test(std::move(e));
    else if (is_op("(")) {  // a call of the filter's result
      e = make(Kind::call, std::move(e));
      arguments(*e);
    } else {
      return e;
    }
  }
}

// x is [not] name, name(arguments), name argument.
ExprPtr ExpressionParser::test(ExprPtr subject) {
  const bool negated = take_name("not");
  std::string name = need_identifier();
  ExprPtr e = make(Kind::test, std::move(subject));
  e->name = std::move(name);
  const Token::Kind kind = peek().kind;
  const bool joins = is_name("and") || is_name("or") || is_name("else") || is_name("if") ||
                     is_name("is") || is_name("in") || is_name("not");
  if (is_op("("))
    arguments(*e);
  else if (is_op("[") || is_op("{") || kind == Token::Kind::string ||
           kind == Token::Kind::integer || kind == Token::Kind::real ||
           (kind == Token::Kind::name && !joins))
    add(*e, postfix(primary()));
  return negated ? make(Kind::negation, std::move(e)) : std::move(e);
}

}  // namespace hearth::jinja
