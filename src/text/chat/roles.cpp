#include "text/chat/roles.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "formats/json.h"

namespace hearth::inline text {
namespace {

std::string meant_role(std::string role) {
  for (char& c : role)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  if (is_message_role(role)) return role;
  if (role == "human") return "user";
  for (const char* name : {"gpt", "bot", "model", "ai", "chatgpt"})
    if (role == name) return "assistant";
  return near(role, std::vector<std::string>(message_roles.begin(), message_roles.end()));
}

}  // namespace

bool is_message_role(std::string_view role) {
  return std::ranges::find(message_roles, role) != message_roles.end();
}

std::string suggested_role(std::string_view unknown) {
  const std::string meant = meant_role(std::string(unknown));
  return meant.empty() ? "" : fmt::format("; did you mean {}?", meant);
}

}  // namespace hearth::inline text
