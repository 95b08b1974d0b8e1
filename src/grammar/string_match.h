// Strings of JSON that several regular expressions match at once and whose length is bounded: the
// product of the expressions' automata over code points and a count.
#pragma once

#include <span>

#include "grammar/json_phrases.h"

namespace hearth::inline grammar {

struct StringMatch {
  std::vector<std::string> patterns = {};  // searched, as JSON Schema's `pattern`; at least one
  int64_t least = 0, most = -1;            // code points; most -1: unlimited
};

// Throws a usage error if no string matches or the product is too large.
Phrase matching_string(ByteGrammar&, JsonPhrases&, const StringMatch&);

}  // namespace hearth::inline grammar
