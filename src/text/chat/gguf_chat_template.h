// Chat templates as GGUF keys: "default" is tokenizer.chat_template, every other one is
// tokenizer.chat_template.NAME, and tokenizer.chat_templates lists the names.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/gguf/gguf.h"

namespace hearth::inline text {

struct NamedTemplate {
  std::string name, text;
};

// The templates in `chat`, which is one text ("default") or a list of objects with name and
// template; anything else is refused.
std::vector<NamedTemplate> named_templates(const nlohmann::ordered_json& chat,
                                           const std::string& where);

// The templates of a file as one text or such a list; null: none.
nlohmann::ordered_json gguf_chat_template(const GgufTable&);
void put_gguf_chat_template(GgufKeys&, const nlohmann::ordered_json& chat);

}  // namespace hearth::inline text
