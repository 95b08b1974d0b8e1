#include "text/chat/request.h"

#include <algorithm>
#include <array>

namespace hearth::jinja {
namespace {

using nlohmann::ordered_json;

constexpr char from_outside = mark::content | mark::foreign;

// Converts JSON to values; all text in it gets `mark`.
Value to_value(Workspace& w, const ordered_json& j, char mark) {
  const Deeper deeper(w);
  w.charge(1);
  switch (j.type()) {
    case ordered_json::value_t::boolean:
      return j.get<bool>();
    case ordered_json::value_t::number_integer:
      return j.get<int64_t>();
    case ordered_json::value_t::number_unsigned:
      if (j.get<uint64_t>() > uint64_t(INT64_MAX)) return j.get<double>();
      return j.get<int64_t>();
    case ordered_json::value_t::number_float:
      return j.get<double>();
    case ordered_json::value_t::string:
      return w.text(MarkedText(j.get_ref<const std::string&>(), mark));
    case ordered_json::value_t::array: {
      List* list = w.list();
      for (const ordered_json& item : j) list->items.push_back(to_value(w, item, mark));
      return list;
    }
    case ordered_json::value_t::object: {
      Map* map = w.map();
      for (const auto& [key, value] : j.items())
        map->entries.emplace_back(w.text(MarkedText(key, mark)), to_value(w, value, mark));
      return map;
    }
    default:
      return None();
  }
}

// A well-known role is a choice, not text of the sender, because templates build special tokens
// from it ('<|' + role + '|>').
Value role_value(Workspace& w, const std::string& role) {
  constexpr std::array known = {"system",    "user",     "assistant", "tool",
                                "developer", "function", "ipython",   "model"};
  const bool plain = std::ranges::find(known, role) != known.end();
  return w.text(MarkedText(role, plain ? 0 : from_outside));
}

Value messages_value(Workspace& w, const ordered_json& messages) {
  if (!messages.is_array()) fail("messages", "expected a list, got {}", messages.type_name());
  List* list = w.list();
  for (const ordered_json& m : messages) {
    const auto role = m.is_object() ? m.find("role") : m.end();
    if (!m.is_object() || role == m.end() || !role->is_string())
      fail("messages", "expected message {} to be an object with a role, got {}",
           list->items.size(), m.is_object() ? "one without" : m.type_name());
    const auto& name = role->get_ref<const std::string&>();
    const Value message = to_value(w, m, name == "assistant" ? mark::content : from_outside);
    *map_of(message)->find("role") = role_value(w, name);
    list->items.push_back(message);
  }
  return list;
}

}  // namespace

ScopePtr request_scope(Workspace& w, const ChatRequest& request, const ordered_json& tokens) {
  const auto given = std::make_shared<Scope>();
  for (const char* name : {"tools", "documents"}) given->set(w, name, None());
  for (const auto& [name, token] : tokens.items())
    given->set(w, w.text(name)->bytes, to_value(w, token, 0));
  for (const auto& [name, value] : request.variables.items())
    given->set(w, w.text(name)->bytes, to_value(w, value, from_outside));
  given->set(w, "messages", messages_value(w, request.messages));
  given->set(w, "add_generation_prompt", request.add_generation_prompt);
  return std::make_shared<Scope>(Scope{given});
}

}  // namespace hearth::jinja
