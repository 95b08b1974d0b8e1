// Regular expressions as phrases of a grammar. Classes and `.` are about code points; \d, \w and \s
// are ASCII, as in JSON Schema's dialect. What a finite automaton cannot do (lookaround,
// backreferences, word boundaries) is refused by name.
#pragma once

#include <functional>
#include <string_view>

#include "grammar/byte_grammar.h"

namespace hearth::inline grammar {

// How a character of a class is written in the text.
using WriteClass = std::function<Phrase(const CodeSet&)>;

// The whole text must match; ^ at the start and $ at the end are allowed and change nothing.
Phrase whole_regex(ByteGrammar&, std::string_view pattern);
// JSON Schema's `pattern`: some part of the text must match, unless ^ and $ say otherwise.
Phrase search_regex(ByteGrammar&, std::string_view pattern, const WriteClass&);

}  // namespace hearth::inline grammar
