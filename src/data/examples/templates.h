// The chat template of a fine-tuning run: its conversations and instructions are trained through
// it, and its checkpoints store it, so that inference uses the same template.
#pragma once

#include <array>
#include <filesystem>
#include <span>
#include <string_view>

#include "text/chat/chat_template.h"

namespace hearth::inline data {

// own: the model's template, or ChatML if it has none.
enum class ChatForm : uint8_t { own, chatml, alpaca };
inline std::span<const std::string_view> names_of(ChatForm) {
  static constexpr auto names = std::to_array<std::string_view>({"own", "chatml", "alpaca"});
  return names;
}
constexpr const char* chat_form_help =
    "chat template of conversations and instructions: own (the model's, or ChatML if it has none), "
    "chatml or alpaca; checkpoints store it";

struct RunTemplate {
  nlohmann::ordered_json source;  // a text, or a list as in tokenizer_config.json
  ChatTemplate chat;
};
// `tokenizer` is the folder or file that the tokenizer was loaded from.
RunTemplate run_template(ChatForm, const std::filesystem::path& tokenizer, const Tokenizer&);

// ChatML; if <|im_end|> is not a special token, the tokenizer's eos closes a turn.
std::string chatml(const Tokenizer&);
// Alpaca's prompt as a template; a system message replaces its first sentence.
std::string alpaca_template(const Tokenizer&);

// Whether the tokenizer adds bos at the start of a text.
bool puts_bos_first(const Tokenizer&);

// The user message for an instruction with an input. Templates read "content"; Alpaca's template
// reads the other two fields if there is an input.
nlohmann::ordered_json instruction_message(const std::string& instruction,
                                           const std::string& input);

}  // namespace hearth::inline data
