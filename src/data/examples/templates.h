// The chat template of an alignment run: the one its conversations and instructions are trained
// through, and the one its checkpoints carry, so that chats are asked as the model was trained.
#pragma once

#include <array>
#include <filesystem>
#include <span>
#include <string_view>

#include "text/chat/chat_template.h"

namespace hearth {

// own: the model's, ChatML where it has none.
enum class ChatForm : uint8_t { own, chatml, alpaca };
inline std::span<const std::string_view> names_of(ChatForm) {
  static constexpr auto names = std::to_array<std::string_view>({"own", "chatml", "alpaca"});
  return names;
}
constexpr const char* chat_form_help =
    "chat template of conversations and instructions: own (the model's, or ChatML if it has none), "
    "chatml or alpaca; checkpoints store it";

struct RunTemplate {
  nlohmann::ordered_json source;  // a text, or several as tokenizer_config.json lists them
  ChatTemplate chat;
};
// `tokenizer` is the folder or file that the tokenizer was read from.
RunTemplate run_template(ChatForm, const std::filesystem::path& tokenizer, const Tokenizer&);

// ChatML; a turn is closed by the tokenizer's eos where <|im_end|> is no special token of it.
std::string chatml(const Tokenizer&);
// Alpaca's prompt as a template; a system message takes the place of its first sentence.
std::string alpaca_template(const Tokenizer&);

// Whether the tokenizer opens a text with bos.
bool puts_bos_first(const Tokenizer&);

// The user's message that a row of instruction and input is. Templates read "content"; Alpaca's
// reads the other two where there is an input.
nlohmann::ordered_json instruction_message(const std::string& instruction,
                                           const std::string& input);

}  // namespace hearth
