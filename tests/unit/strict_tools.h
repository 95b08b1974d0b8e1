// A request with strict tools, and a model with tokens for the tags around a call.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "served_folder.h"
#include "sys/files/files.h"

namespace hearth {

constexpr int32_t tool_opening = 260;
inline const char* hermes_template() {
  return "{% if tools %}{% for t in tools %}{{ t.function.name }}{% endfor %}<tool_call>{% endif %}"
         "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
         "{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}<|end|>"
         "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";
}
inline const char* llama_template() {
  return "{% for t in tools or [] %}{{ t.function.name }} \"parameters\"{% endfor %}"
         "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>";
}

// One of the tags is a special token and the other one is not.
inline void write_tool_folder(const std::filesystem::path& dir, const char* chat_template) {
  write_served_folder(dir, true,
                      {{.text = "<tool_call>", .id = tool_opening, .special = false},
                       {.text = "</tool_call>", .id = tool_opening + 1, .special = true}});
  write_file_atomic(dir / "chat_template.jinja", chat_template);
}

// The strict tool "add", whose arguments are two digits of which the second one is even, and
// "note", which takes any object. `token` is made so likely that the model takes it wherever it
// may, and "a" where it may not.
inline std::string strict_request(int32_t token, const std::string& fields = "") {
  nlohmann::ordered_json digit{{"type", "integer"}, {"minimum", 0}, {"maximum", 9}}, even = digit;
  even["multipleOf"] = 2;
  const nlohmann::ordered_json add{{"type", "object"},
                                   {"properties", {{"a", digit}, {"b", even}}},
                                   {"required", {"a", "b"}},
                                   {"additionalProperties", false}};
  const nlohmann::ordered_json tools{
      {{"type", "function"},
       {"function", {{"name", "add"}, {"strict", true}, {"parameters", add}}}},
      {{"type", "function"},
       {"function", {{"name", "note"}, {"parameters", {{"type", "string"}}}}}}};
  return R"({"messages":[{"role":"user","content":"x"}],"max_tokens":180,"tools":)" + tools.dump() +
         R"(,"logit_bias":{")" + std::to_string(token) + R"(":100,"97":20})" + fields;
}

}  // namespace hearth
