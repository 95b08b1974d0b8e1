// The messages and variables of a request as template values, marked by their author.
#pragma once

#include "text/chat/chat_template.h"
#include "text/chat/renderer.h"

namespace hearth::jinja {

ScopePtr request_scope(Workspace&, const ChatRequest&, const nlohmann::ordered_json& tokens);

}  // namespace hearth::jinja
