#include "text/chat/gguf_chat_template.h"

#include <algorithm>

#include "formats/json.h"
#include "sys/error.h"

namespace hearth::inline text {

using nlohmann::ordered_json;

namespace {

constexpr const char *gguf_template = "tokenizer.chat_template",
                     *gguf_names = "tokenizer.chat_templates";

std::string key_of_template(std::string_view name) {
  return fmt::format("{}.{}", gguf_template, name);
}

// gguf-py's names of keys have letters, digits and underscores.
std::string name_in_key(std::string name) {
  std::ranges::replace_if(
      name,
      [](char c) {
        return !((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'));
      },
      '_');
  return name;
}

}  // namespace

std::vector<NamedTemplate> named_templates(const ordered_json& chat, const std::string& where) {
  if (chat.is_string()) return {{"default", chat.get<std::string>()}};
  if (!chat.is_array())
    fail(where, "expected a chat template or a list of named ones, got {}", chat.type_name());
  std::vector<NamedTemplate> all;
  for (const ordered_json& entry : chat) {
    const bool whole = entry.is_object() && entry.value("name", ordered_json()).is_string() &&
                       entry.value("template", ordered_json()).is_string();
    if (!whole) fail(where, "expected a name and a template in every entry");
    all.push_back({entry["name"], entry["template"]});
  }
  return all;
}

ordered_json gguf_chat_template(const GgufTable& f) {
  ordered_json list = ordered_json::array();
  if (f.has(gguf_template))
    list.push_back({{"name", "default"}, {"template", std::string(f.text(gguf_template))}});
  if (f.has(gguf_names))
    for (const std::string_view name : f.texts(gguf_names))
      list.push_back(
          {{"name", std::string(name)}, {"template", std::string(f.text(key_of_template(name)))}});
  if (list.empty()) return {};
  return f.has(gguf_names) ? list : list[0]["template"];
}

void put_gguf_chat_template(GgufKeys& keys, const ordered_json& chat) {
  if (chat.is_null()) return;
  std::vector<std::string> names;
  for (const auto& [given, text] : named_templates(chat, "gguf")) {
    const std::string name = name_in_key(given);
    if (std::ranges::find(names, name) != names.end())
      fail("gguf", "expected chat templates of different names, got {} twice", in_quotes(name));
    keys.set(name == "default" ? gguf_template : key_of_template(name), text);
    if (name != "default") names.push_back(name);
  }
  if (!names.empty()) keys.set(gguf_names, names);
}

}  // namespace hearth::inline text
