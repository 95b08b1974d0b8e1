// A model folder to serve in tests: one layer of random weights over bytes.
#pragma once

#include <filesystem>
#include <string_view>

#include "text/tokenizer/tokenizer.h"

namespace hearth {

constexpr int64_t served_context = 256;
constexpr int32_t served_eos = 256;

inline const char* served_template() {
  return "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
         "{% if add_generation_prompt %}<|assistant|>{% endif %}";
}

// Every byte is a token; then come <|end|> (eos), <|user|>, <|assistant|>, <|system|>.
Tokenizer served_tokenizer();
void write_served_folder(const std::filesystem::path&, bool chat_template = true);

// A model that, at temperature 0, answers everything by the refrain, a byte a token, over and over
// until its context ends: nothing a test does in between is too late.
constexpr std::string_view refrain = "é日😀 ";  // no byte of it stands twice
constexpr int64_t refrain_context = 1 << 18;
void write_refrain_folder(const std::filesystem::path&);

}  // namespace hearth
