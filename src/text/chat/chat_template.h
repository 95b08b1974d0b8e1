// ChatTemplate: renders a conversation to the text a model was trained on, with the Jinja template
// of its folder. The text is marked: content of the request never becomes a special token
// (marked_text.h), and the assistant's answers are known for training.
#pragma once

#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat/marked_text.h"
#include "text/chat/tool_calls.h"
#include "text/tokenizer/tokenizer.h"

namespace hearth::inline text {

struct ChatRequest {
  nlohmann::ordered_json messages;     // [{"role": ..., "content": ...}, ...]
  bool add_generation_prompt = false;  // end with the opening of the assistant's turn
  nlohmann::ordered_json variables =
      {};  // further template variables: tools, documents, enable_thinking ...
  std::optional<std::time_t> now = {};  // for strftime_now; default: the current time
};

class ChatTemplate {
 public:
  // Loads chat_template.jinja of a model folder, else "chat_template" of its tokenizer_config.json:
  // one text, or a list of named ones, where "tool_use" is for requests with tools and "default"
  // for the others. The special tokens of tokenizer_config.json become variables (bos_token ...).
  static ChatTemplate load(const std::filesystem::path& dir);
  // A template given as text; `tokens` maps names to special tokens.
  ChatTemplate(std::string_view source, std::string_view where,
               const nlohmann::ordered_json& tokens = {});

  MarkedText render(const ChatRequest&) const;
  // The same with the assistant's answers marked: by the template's {% generation %} blocks, else
  // from the opening of each turn up to and including the text that closes it. `unlearned`: indices
  // of messages whose answers are not marked.
  MarkedText render_answers(const ChatRequest&, std::span<const size_t> unlearned = {}) const;

  // How the model writes tool calls, judged by the template for requests with tools.
  ToolFormat tool_format() const;

  // Whether a template contains this word as a string, as it does with the roles that it treats in
  // a way of their own.
  bool names(std::string_view word) const;

  // Whether a template contains this word anywhere. One that does not ignores a variable or a key
  // of messages with this name.
  bool mentions(std::string_view word) const;

  // Whether dir contains a template.
  static bool exists(const std::filesystem::path& dir);

 private:
  struct Parsed;
  ChatTemplate() = default;
  void add(std::string_view name, std::string_view source, std::string_view where);
  const Parsed& choose(const ChatRequest&) const;
  MarkedText without_answers(MarkedText, const ChatRequest&, std::span<const size_t>) const;
  std::vector<std::shared_ptr<const Parsed>> parsed_;
  nlohmann::ordered_json tokens_;
};

// bos_token and the other special tokens that tokenizer_config.json names.
nlohmann::ordered_json special_tokens(const nlohmann::ordered_json& tokenizer_config);

// The end tokens of the vocabulary that generation_config.json of a model's folder names, or its
// config.json if there is no such file, or a GGUF file besides its eos (which may be among them).
std::vector<int32_t> generation_ends(const std::filesystem::path& dir, const Tokenizer&);

// The special token that closes the assistant's turn in a template; -1: none.
int32_t turn_end(const ChatTemplate&, const Tokenizer&);

struct EncodedChat {
  std::vector<int32_t> ids;
  std::vector<bool> answer;           // for each id: any of its bytes belongs to an answer
  bool spelled = false;               // text that spells a special token was encoded as plain text
  TextStart next = TextStart::whole;  // what a text after this one starts with
};

// Special tokens are recognised only in bytes that the template wrote; added tokens that are not
// special also in the assistant's text. Everything else is encoded as plain text.
EncodedChat encode_chat(const Tokenizer&, const MarkedText&, TextStart = TextStart::whole);

// The template stored beside a tokenizer, unchanged; null if there is none.
nlohmann::ordered_json written_chat_template(const std::filesystem::path& tokenizer);
// Writes such a template into the folder of a saved tokenizer; null: nothing. A single template
// gets its own file; a list goes back into tokenizer_config.json. Some readers prefer the key in
// tokenizer_config.json, so if that key exists it is updated too.
void write_chat_template(const std::filesystem::path& dir, const nlohmann::ordered_json& chat);

}  // namespace hearth::inline text
