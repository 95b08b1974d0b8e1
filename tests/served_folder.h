// A model folder to serve in tests: one layer of random weights with a byte tokenizer.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/vocabulary.h"

namespace hearth {

constexpr int64_t served_context = 256;
constexpr int32_t served_eos = 256;

inline const char* served_template() {
  return "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
         "{% if add_generation_prompt %}<|assistant|>{% endif %}";
}

// Every byte is a token, followed by <|end|> (eos), <|user|>, <|assistant|>, <|system|> and the
// further ones, whose ids begin at 260.
Tokenizer served_tokenizer(const std::vector<AddedToken>& more = {});
void write_served_folder(const std::filesystem::path&, bool chat_template = true,
                         const std::vector<AddedToken>& more = {});

// A model that, at temperature 0, answers everything with the refrain, one byte per token, repeated
// until its context ends, so a test has time to act during a generation.
constexpr std::string_view refrain = "é日😀 ";  // all its bytes are distinct
constexpr int64_t refrain_context = 1 << 18;
void write_refrain_folder(const std::filesystem::path&);

}  // namespace hearth
