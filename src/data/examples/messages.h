// Lists of messages in rows of fine-tuning data and of prompts, as chat templates take them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "sys/error.h"

namespace hearth::inline data {

// A list with ShareGPT's messages {"from", "value"} as {"role", "content"}; human is the user and
// gpt the assistant. Other messages and other values are returned unchanged.
nlohmann::ordered_json as_messages(nlohmann::ordered_json);

// Throws unless it is a list of messages with known roles; `key` is its name in the row.
void expect_messages(const nlohmann::ordered_json&, const char* key, const std::string& where);

// What render() returns; an error of the chat template names the row at `where`.
template <class Render>
auto in_row(const std::string& where, Render render) {
  try {
    return render();
  } catch (const Error& e) { fail(where, "{}", e.what()); }
}

}  // namespace hearth::inline data
