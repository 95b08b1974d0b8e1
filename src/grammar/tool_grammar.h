// The grammars of answers that call tools: one call, or free text in which every call is one of a
// tool's.
#pragma once

#include <nlohmann/json.hpp>

#include "grammar/byte_grammar.h"

namespace hearth::inline grammar {

// `asked` is the text of a ConstraintSpec of tools.
ByteGrammar tools_grammar(const nlohmann::ordered_json& asked, const std::string& where);

}  // namespace hearth::inline grammar
