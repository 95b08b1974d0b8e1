#include "data/examples/messages.h"

#include "formats/json.h"
#include "text/chat/roles.h"

namespace hearth::inline data {
namespace {

using nlohmann::ordered_json;

void expect_roles(const ordered_json& messages, const std::string& where) {
  for (const ordered_json& m : messages) {
    const std::string& role = m["role"].get_ref<const std::string&>();
    const bool of_program = role == "function" || role == "ipython";  // as some templates name it
    if (!is_message_role(role) && !of_program)
      fail(where, "expected a role system, user or assistant, got {}{}", in_quotes(role),
           suggested_role(role));
  }
}

std::string role_of_sender(const std::string& from) {
  return from == "human" ? "user" : from == "gpt" ? "assistant" : from;
}

}  // namespace

ordered_json as_messages(ordered_json list) {
  if (!list.is_array()) return list;
  for (ordered_json& m : list) {
    const bool shared = m.is_object() && !m.contains("role") && m.contains("from") &&
                        m["from"].is_string() && m.contains("value");
    if (shared)
      m = ordered_json{{"role", role_of_sender(m["from"].get<std::string>())},
                       {"content", m["value"]}};
  }
  return list;
}

void expect_messages(const ordered_json& list, const char* key, const std::string& where) {
  bool good = list.is_array() && !list.empty();
  for (size_t i = 0; good && i < list.size(); ++i)
    good = list[i].is_object() && list[i].contains("role") && list[i]["role"].is_string() &&
           list[i].contains("content");
  if (!good) fail(where, "expected messages with a role and a content in \"{}\"", key);
  expect_roles(list, where);
}

}  // namespace hearth::inline data
