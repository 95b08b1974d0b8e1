// Lists of messages in rows of fine-tuning data and of prompts, as chat templates take them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sys/error.h"
#include "text/chat/chat_template.h"

namespace hearth::inline data {

// A list of messages as the server gives them to chat templates: a content that is a list of text
// parts becomes one text, the null of a message with tool_calls an empty one, and the arguments of
// a call become JSON. ShareGPT's messages {"from", "value"} become {"role", "content"}, with human
// as the user and gpt as the assistant. Of weights, which may be 0 or 1, only 0 is left. Other
// values are returned unchanged. `key` is the name of the list in the row.
nlohmann::ordered_json as_messages(nlohmann::ordered_json, const char* key,
                                   const std::string& where);

// Throws unless it is a list of messages with known roles.
void expect_messages(const nlohmann::ordered_json&, const char* key, const std::string& where);

// Removes the weights that as_messages() left, and returns the indices of the assistant's messages
// that had one: they are not learned.
std::vector<size_t> take_unlearned(nlohmann::ordered_json& messages);

// The "tools" of a row as a variable of its chat template; null if it has none.
nlohmann::ordered_json tool_variables(const nlohmann::ordered_json& row, const std::string& where);

// Throws if the template never mentions something that the request has for it, because it would be
// left out without a word.
void expect_read(const ChatTemplate&, const ChatRequest&, const std::string& where);

// What render() returns; an error of the chat template names the row at `where`.
template <class Render>
auto in_row(const std::string& where, Render render) {
  try {
    return render();
  } catch (const Error& e) { fail(where, "{}", e.what()); }
}

}  // namespace hearth::inline data
