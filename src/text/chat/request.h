// What a template finds of a request: its messages and variables as values, marked by who wrote
// them.
#pragma once

#include "text/chat/chat_template.h"
#include "text/chat/renderer.h"

namespace hearth::jinja {

ScopePtr request_scope(Workspace&, const ChatRequest&, const nlohmann::ordered_json& tokens);

}  // namespace hearth::jinja
