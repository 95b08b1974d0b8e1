#include "data/examples/messages.h"

#include <algorithm>

#include "data/jsonl.h"
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

// A member that is present and not null; else null.
const ordered_json* member(const ordered_json& j, const char* key) {
  const auto it = j.is_object() ? j.find(key) : j.end();
  return it == j.end() || it->is_null() ? nullptr : &*it;
}

// A value for errors.
std::string shown(const ordered_json* j) {
  if (!j) return "none";
  return j->is_string() ? in_quotes(j->get_ref<const std::string&>()) : j->type_name();
}

// A content as one text. `path` is its place in the row.
std::string content_text(const ordered_json& content, const std::string& path,
                         const std::string& where) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array())
    fail(where, "expected text or a list of text parts in {}, got {}", path, content.type_name());
  std::string text;
  for (const ordered_json& part : content) {
    const ordered_json *type = member(part, "type"), *said = member(part, "text");
    if (!type || *type != "text")
      fail(where, "expected parts of type text in {}, got {}", path, shown(type));
    if (!said || !said->is_string())
      fail(where, "expected a string as the text of each part in {}, got {}", path, shown(said));
    text += said->get_ref<const std::string&>();
  }
  return text;
}

// A value that a row may also give as its JSON text, as data sets in tables do.
ordered_json parsed_text(const ordered_json& given, const std::string& path,
                         const std::string& where) {
  constexpr size_t most_depth = 32;
  if (!given.is_string()) return given;
  const std::string& text = given.get_ref<const std::string&>();
  return in_row(where, [&] { return parse_ordered_json(text, path, {.max_depth = most_depth}); });
}

// A call as the server gives it to templates: its arguments are JSON, not text. A call without the
// object "function" around its name and arguments gets one.
ordered_json call_value(const ordered_json& call, const std::string& path,
                        const std::string& where) {
  const ordered_json* wrapped = member(call, "function");
  const ordered_json& function = wrapped ? *wrapped : call;
  const ordered_json *id = member(call, "id"), *name = member(function, "name"),
                     *given = member(function, "arguments");
  if (!name || !name->is_string() || *name == "")
    fail(where, "expected the name of a function in {}, got {}", path, shown(name));
  ordered_json arguments = given ? *given : ordered_json::object();
  if (arguments == "") arguments = ordered_json::object();
  if (arguments.is_string())
    arguments = parsed_text(arguments, path + ".arguments", where);
  else if (!arguments.is_object())
    fail(where, "expected arguments as an object or its JSON text in {}, got {}", path,
         arguments.type_name());
  return {{"id", id && id->is_string() ? id->get<std::string>() : ""},
          {"type", "function"},
          {"function", {{"name", *name}, {"arguments", std::move(arguments)}}}};
}

// Returns whether a message has calls. An empty list or null is removed.
bool read_calls(ordered_json& message, const std::string& path, const std::string& where) {
  if (!has_content(message, "tool_calls")) {
    message.erase("tool_calls");
    return false;
  }
  ordered_json& list = message["tool_calls"];
  const std::string at = path + ".tool_calls";
  if (!list.is_array()) fail(where, "expected a list in {}, got {}", at, list.type_name());
  if (const ordered_json* role = member(message, "role"); role && *role != "assistant")
    fail(where, "expected tool_calls in messages of the assistant only, got them in {} of role {}",
         path, shown(role));
  ordered_json calls = ordered_json::array();
  for (const ordered_json& call : list)
    calls.push_back(call_value(call, fmt::format("{}[{}]", at, calls.size()), where));
  list = std::move(calls);
  return true;
}

// Makes a message's content one text; a message that calls tools may have none.
void read_content(ordered_json& message, bool calls, const std::string& path,
                  const std::string& where) {
  if (calls && !member(message, "content")) message["content"] = "";
  if (const auto it = message.find("content"); it != message.end() && !it->is_string())
    *it = content_text(*it, path + ".content", where);
}

// OpenAI's weight of a message in the loss; 1 is the default.
void read_weight(ordered_json& message, const std::string& path, const std::string& where) {
  const ordered_json* weight = member(message, "weight");
  if (weight && *weight == 0) return;
  if (weight && *weight != 1)
    fail(where, "expected a weight of 0 or 1 in {}, got {}", path,
         weight->is_number() ? weight->dump() : shown(weight));
  message.erase("weight");
}

std::string role_of_sender(const std::string& from) {
  return from == "human" ? "user" : from == "gpt" ? "assistant" : from;
}

}  // namespace

ordered_json as_messages(ordered_json list, const char* key, const std::string& where) {
  if (!list.is_array()) return list;
  for (size_t i = 0; i < list.size(); ++i) {
    ordered_json& m = list[i];
    if (!m.is_object()) continue;
    const bool shared =
        !m.contains("role") && m.contains("from") && m["from"].is_string() && m.contains("value");
    if (shared) {
      ordered_json said{{"role", role_of_sender(m["from"].get<std::string>())},
                        {"content", m["value"]}};
      if (m.contains("weight")) said["weight"] = m["weight"];
      m = std::move(said);
    }
    const std::string path = fmt::format("{}[{}]", key, i);
    const bool calls = read_calls(m, path, where);
    read_content(m, calls, path, where);
    read_weight(m, path, where);
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

std::vector<size_t> take_unlearned(ordered_json& messages) {
  std::vector<size_t> unlearned;
  for (size_t i = 0; i < messages.size(); ++i)
    if (messages[i].erase("weight") > 0 && messages[i]["role"] == "assistant")
      unlearned.push_back(i);
  return unlearned;
}

ordered_json tool_variables(const ordered_json& row, const std::string& where) {
  if (!has_content(row, "tools") || row["tools"] == "") return {};
  ordered_json tools = parsed_text(row["tools"], "tools", where);
  if (!tools.is_array())
    fail(where, "expected a list or its JSON text in \"tools\", got {}", tools.type_name());
  for (const ordered_json& tool : tools)
    if (!tool.is_object()) fail(where, "expected objects in \"tools\", got {}", tool.type_name());
  if (tools.empty()) return {};
  ordered_json variables;
  variables["tools"] = std::move(tools);
  return variables;
}

void expect_read(const ChatTemplate& chat, const ChatRequest& request, const std::string& where) {
  const auto expect_place = [&](bool used, const char* key) {
    if (used && !chat.mentions(key))
      fail(where,
           "the chat template has no place for \"{}\": use a model whose template has one, or "
           "remove them",
           key);
  };
  const auto calls = [](const ordered_json& m) { return m.contains("tool_calls"); };
  expect_place(request.variables.contains("tools"), "tools");
  expect_place(std::ranges::any_of(request.messages, calls), "tool_calls");
}

}  // namespace hearth::inline data
