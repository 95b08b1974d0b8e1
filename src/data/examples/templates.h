// The chat template of a fine-tuning run: its conversations and instructions are trained through
// it, and its checkpoints store it, so that inference uses the same template.
#pragma once

#include <ctime>
#include <filesystem>
#include <optional>

#include "formats/enum_names.h"
#include "text/chat/chat_template.h"

namespace hearth::inline data {

// own: the model's template, or ChatML if it has none.
enum class ChatForm : uint8_t { own, chatml, alpaca };
HEARTH_ENUM_NAMES(ChatForm, {"own", "chatml", "alpaca"})

// The settings of templates in run configs.
struct TemplateConfig {
  ChatForm chat_template = ChatForm::own;
  int64_t clock = 0;

  template <class V>
  void visit(V&& v) {
    v("chat_template", chat_template,
      "chat template of conversations and instructions: own (the model's, or ChatML if it has "
      "none), chatml or alpaca; checkpoints store it");
    v("clock", clock,
      "date for chat templates, in seconds since 1970; 0: the time when the run starts");
  }
  // The date; nothing: none was set.
  std::optional<std::time_t> now() const {
    return clock ? std::optional(std::time_t(clock)) : std::nullopt;
  }
};

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
