// The tokens of a template. Whitespace control is resolved here, with trim_blocks and lstrip_blocks
// on and one final newline dropped, which are the settings that transformers uses for Jinja.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hearth::jinja {

struct Token {
  enum class Kind {
    text,
    block_begin,
    block_end,
    print_begin,
    print_end,
    name,
    string,
    integer,
    real,
    op,
    end
  };
  Kind kind;
  std::string text;  // for a string: its bytes with escapes resolved
  int line;
};

// `where` names the template in errors. The last token is `end`.
std::vector<Token> tokenize(std::string_view source, std::string_view where);

}  // namespace hearth::jinja
