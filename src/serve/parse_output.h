// Parses the fields of a request that say what its answer must look like: response_format,
// structured_outputs, tools and tool_choice.
#pragma once

#include "serve/parse.h"
#include "serve/request_fields.h"

namespace hearth::inline serve {

ConstraintSpec parse_constraint(Fields&);
ToolUse parse_tools(Fields&);
// The tool_calls of an assistant's message as chat templates expect them: arguments are JSON, not
// text.
nlohmann::ordered_json parse_tool_calls(const nlohmann::ordered_json&, const std::string& where);

}  // namespace hearth::inline serve
