#include "serve/parse_output.h"

#include <algorithm>

#include "sys/error.h"

namespace hearth::inline serve {
namespace {

using nlohmann::ordered_json;
using Kind = ConstraintSpec::Kind;

constexpr size_t most_tools = 128, most_name = 64;

// OpenAI's field; `strict` has no effect, because every answer is constrained.
ConstraintSpec parse_response_format(const ordered_json& format) {
  Fields f(format, "response_format");
  const std::string type = f.string("type");
  if (type == "text") return {};
  if (type == "json_object") {
    f.refuse_others();
    return {.kind = Kind::json_object, .where = "response_format"};
  }
  if (type != "json_schema")
    refuse("response_format.type", "expected text, json_object or json_schema, got {}",
           in_quotes(type));
  const ordered_json* given = f.find("json_schema");
  if (!given) refuse("response_format.json_schema", "expected an object with a schema, got none");
  f.refuse_others();
  Fields inner(*given, "response_format.json_schema");
  const ordered_json* schema = inner.find("schema");
  if (!schema) refuse("response_format.json_schema.schema", "expected a schema, got none");
  inner.boolean("strict", false);
  inner.ignore({"name", "description"});
  inner.refuse_others();
  return {.kind = Kind::json_schema, .text = schema->dump(), .where = "response_format"};
}

std::string choice_list(const ordered_json& list) {
  if (!list.is_array() || list.empty())
    refuse("structured_outputs.choice", "expected a list of at least one text");
  for (const ordered_json& text : list)
    if (!text.is_string() || text.get_ref<const std::string&>().empty())
      refuse("structured_outputs.choice", "expected texts of at least one character");
  return list.dump();
}

// vLLM's field: one of json, regex, choice and json_object.
ConstraintSpec parse_structured(const ordered_json& given) {
  Fields f(given, "structured_outputs");
  std::vector<ConstraintSpec> found;
  const std::string where = "structured_outputs";
  if (const ordered_json* schema = f.find("json"))
    found.push_back({.kind = Kind::json_schema,
                     .text = schema->is_string() ? schema->get<std::string>() : schema->dump(),
                     .where = where});
  if (f.find("regex"))
    found.push_back({.kind = Kind::regex, .text = f.string("regex"), .where = where});
  if (const ordered_json* list = f.find("choice"))
    found.push_back({.kind = Kind::choice, .text = choice_list(*list), .where = where});
  if (f.boolean("json_object", false)) found.push_back({.kind = Kind::json_object, .where = where});
  f.refuse_others();
  if (found.size() != 1)
    refuse(where, "expected one of json, regex, choice and json_object, got {}", found.size());
  return found[0];
}

ordered_json parse_tool(const ordered_json& tool, const std::string& where) {
  Fields f(tool, where);
  if (const std::string type = f.string("type"); type != "function")
    refuse(where + ".type", "expected function, got {}", in_quotes(type));
  const ordered_json* function = f.find("function");
  if (!function) refuse(where + ".function", "expected an object, got none");
  f.refuse_others();
  Fields g(*function, where + ".function");
  const std::string name = g.string("name");
  const bool plain = std::ranges::all_of(
      name, [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-' || c == '.'; });
  if (name.empty() || name.size() > most_name || !plain)
    refuse(where + ".function.name", "expected 1 to {} letters, digits, _, - or ., got {}",
           most_name, in_quotes(name));
  g.string("description"), g.boolean("strict", false);
  if (const ordered_json* p = g.find("parameters"); p && !p->is_object())
    refuse(where + ".function.parameters", "expected a schema, got {}", p->type_name());
  g.refuse_others();
  return tool;
}

bool is_strict(const ordered_json& tool) {
  const ordered_json& f = tool.at("function");
  return f.contains("strict") && f["strict"] == true;
}

// The fields of older versions of vLLM that constrain an answer, each with ours for the purpose.
void refuse_guided(Fields& f) {
  constexpr std::pair<const char*, const char*> guided[] = {
      {"guided_json", "response_format or structured_outputs {\"json\": ..}"},
      {"guided_regex", "structured_outputs {\"regex\": ..}"},
      {"guided_choice", "structured_outputs {\"choice\": [..]}"},
      {"guided_grammar", "structured_outputs with json, regex or choice"}};
  for (const auto& [name, ours] : guided)
    if (f.find(name)) refuse(name, "this server takes {} instead of {}", ours, name);
}

}  // namespace

bool ToolUse::strict() const {
  return choice == Choice::automatic && std::ranges::any_of(tools, is_strict);
}

ordered_json ToolUse::callable() const {
  ordered_json all = ordered_json::array();
  for (const ordered_json& tool : tools) {
    const ordered_json& f = tool.at("function");
    if (!named.empty() && f.at("name") != named) continue;
    const ordered_json given = f.contains("parameters") && f["parameters"].is_object()
                                   ? f["parameters"]
                                   : ordered_json::object();
    const bool free = choice == Choice::automatic && !is_strict(tool);
    all.push_back(
        {{"name", f.at("name")}, {"parameters", free ? ordered_json{{"type", "object"}} : given}});
  }
  return all;
}

ConstraintSpec parse_constraint(Fields& f) {
  refuse_guided(f);
  ConstraintSpec c;
  if (const ordered_json* format = f.find("response_format")) c = parse_response_format(*format);
  const ordered_json* given = f.find("structured_outputs");
  if (given && c.kind != Kind::none)
    refuse("structured_outputs", "expected it or response_format, got both");
  return given ? parse_structured(*given) : c;
}

ToolUse parse_tools(Fields& f) {
  ToolUse use;
  const ordered_json *tools = f.find("tools"), *choice = f.find("tool_choice");
  use.tools = ordered_json::array();
  use.parallel = f.boolean("parallel_tool_calls", true);
  if (tools && !tools->is_array()) refuse("tools", "expected a list, got {}", tools->type_name());
  if (tools && tools->size() > most_tools)
    refuse("tools", "expected at most {} tools, got {}", most_tools, tools->size());
  if (tools)
    for (const ordered_json& t : *tools)
      use.tools.push_back(parse_tool(t, fmt::format("tools[{}]", use.tools.size())));
  if (!use.tools.empty()) use.choice = ToolUse::Choice::automatic;
  if (!choice) return use;
  if (*choice == "none") return use.choice = ToolUse::Choice::none, use;
  if (use.tools.empty()) refuse("tool_choice", "tool_choice needs tools");
  if (*choice == "auto") return use;
  use.choice = ToolUse::Choice::required;
  if (*choice == "required") return use;
  if (!choice->is_object())
    refuse("tool_choice", "expected none, auto, required or a function, got {}",
           in_quotes(choice->dump()));
  Fields c(*choice, "tool_choice");
  const ordered_json* function = c.find("function");
  if (c.string("type") != "function" || !function)
    refuse("tool_choice", "expected {{\"type\": \"function\", \"function\": {{\"name\": ..}}}}");
  c.refuse_others();
  use.named = Fields(*function, "tool_choice.function").string("name");
  if (use.named.empty() || use.callable().empty())
    refuse("tool_choice.function.name", "expected the name of a tool, got {}",
           in_quotes(use.named));
  return use;
}

ordered_json parse_tool_calls(const ordered_json& list, const std::string& where) {
  if (!list.is_array()) refuse(where, "expected a list, got {}", list.type_name());
  ordered_json calls = ordered_json::array();
  for (const ordered_json& call : list) {
    const std::string at = fmt::format("{}[{}]", where, calls.size());
    Fields f(call, at);
    const std::string id = f.string("id");
    f.ignore({"type", "index"});
    const ordered_json* function = f.find("function");
    if (!function) refuse(at + ".function", "expected an object, got none");
    f.refuse_others();
    Fields g(*function, at + ".function");
    const std::string name = g.string("name"), text = g.string("arguments");
    if (name.empty()) refuse(at + ".function.name", "expected a name, got none");
    g.refuse_others();
    ordered_json arguments = ordered_json::object();
    try {
      if (!text.empty()) arguments = parse_ordered_json(text, at, {.max_depth = 32});
    } catch (const Error& e) { refuse(at + ".function.arguments", "expected JSON: {}", e.what()); }
    calls.push_back({{"id", id},
                     {"type", "function"},
                     {"function", {{"name", name}, {"arguments", std::move(arguments)}}}});
  }
  return calls;
}

}  // namespace hearth::inline serve
