// The syntax tree of a template. All nodes have one form (a kind and its parts), which keeps parser
// and evaluator short.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/chat/value.h"

namespace hearth::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum class Kind {
    literal,    // value, or text for a string
    name,       // name
    list,       // parts
    tuple,      // parts
    map,        // parts: key, value, key, value ...
    negative,   // -parts[0]
    negation,   // not parts[0]
    binary,     // parts[0] ops[0] parts[1]
    compare,    // parts[0] ops[0] parts[1] ops[1] parts[2] ...
    both,       // parts[0] and parts[1]
    either,     // parts[0] or parts[1]
    choice,     // parts[1] if parts[0] else parts[2] (which may be absent)
    attribute,  // parts[0].name
    item,       // parts[0][parts[1]]
    slice,      // parts[0][parts[1]:parts[2]:parts[3]], each may be null
    call,       // parts[0](parts[1:], named)
    filter,     // parts[0] | name(parts[1:], named)
    test,       // parts[0] is name(parts[1:], named)
  };
  Kind kind;
  int line;
  int depth = 1;
  std::string name = {};
  Value value = None();
  MarkedText text = {};
  std::vector<ExprPtr> parts = {};
  std::vector<std::pair<std::string, ExprPtr>> named = {};
  std::vector<Op> ops = {};
};

struct Stmt;
using Block = std::vector<Stmt>;

struct Parameter {
  std::string name;
  ExprPtr otherwise;  // null: undefined
};

struct Stmt {
  enum class Kind {
    text,        // text
    print,       // value
    set,         // targets = value, or targets[0].attribute = value
    set_block,   // targets[0] = body after the filters of `value`
    loop,        // for targets in value if condition: body, else otherwise
    branch,      // the first of `branches` whose condition (null: else) holds
    macro,       // name(parameters): body
    call,        // value with body as caller(parameters)
    filter,      // body after the filters of `value`
    with,        // settings, then body, in a new scope
    generation,  // body is the assistant's answer
    leave,       // break
    next,        // continue
  };
  Kind kind;
  int line;
  std::string name = {};
  MarkedText text = {};
  ExprPtr value = {}, condition = {};
  std::vector<std::string> targets = {};
  std::vector<Parameter> parameters = {};
  std::vector<std::pair<ExprPtr, Block>> branches = {};
  Block body = {}, otherwise = {};
};

// Defined in parser.cpp. A syntax error names the line of the template.
Block parse_template(std::string_view source, std::string_view where, const Limits&);

}  // namespace hearth::jinja
