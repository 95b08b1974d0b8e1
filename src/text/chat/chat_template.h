// ChatTemplate: a conversation as the text a model was trained on, by the Jinja template of its
// folder. The text is marked: what came with the request never becomes a special token
// (marked_text.h), and for training the assistant's answers are known.
#pragma once

#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat/marked_text.h"
#include "text/tokenizer/tokenizer.h"

namespace hearth {

struct ChatRequest {
  nlohmann::ordered_json messages;     // [{"role": ..., "content": ...}, ...]
  bool add_generation_prompt = false;  // end with what opens the assistant's turn
  nlohmann::ordered_json variables =
      {};  // more of them by name: tools, documents, enable_thinking ...
  std::optional<std::time_t> now = {};  // for strftime_now; the clock's where absent
};

class ChatTemplate {
 public:
  // chat_template.jinja of a model folder, else "chat_template" of its tokenizer_config.json (one
  // text, or a list of named ones: "tool_use" serves requests with tools, "default" all others).
  // The special tokens of tokenizer_config.json become variables (bos_token ...).
  static ChatTemplate load(const std::filesystem::path& dir);
  // A template by itself; `tokens` maps names to special tokens.
  ChatTemplate(std::string_view source, std::string_view where,
               const nlohmann::ordered_json& tokens = {});

  MarkedText render(const ChatRequest&) const;
  // The same with the assistant's answers marked: by the template's {% generation %} blocks, else
  // each is what follows the opening of its turn, up to and with the text that closes it.
  MarkedText render_answers(const ChatRequest&) const;

  // Whether dir has a template.
  static bool exists(const std::filesystem::path& dir);

 private:
  struct Parsed;
  ChatTemplate() = default;
  void add(std::string_view name, std::string_view source, std::string_view where);
  const Parsed& choose(const ChatRequest&) const;
  std::vector<std::shared_ptr<const Parsed>> parsed_;
  nlohmann::ordered_json tokens_;
};

// bos_token and its kin, as tokenizer_config.json names them.
nlohmann::ordered_json special_tokens(const nlohmann::ordered_json& tokenizer_config);

// The tokens that generation_config.json of a model's folder ends a text with, those that the
// tokenizer has.
std::vector<int32_t> generation_ends(const std::filesystem::path& dir, const Tokenizer&);

// The special token that closes the assistant's turn in a template; -1 where none does.
int32_t turn_end(const ChatTemplate&, const Tokenizer&);

// What ends an answer of the model in `dir` that is asked by this template: generation_ends(), and
// turn_end() where that is another.
std::vector<int32_t> answer_ends(const std::filesystem::path& dir, const ChatTemplate&,
                                 const Tokenizer&);

struct EncodedChat {
  std::vector<int32_t> ids;
  std::vector<bool> answer;  // for each id, whether any of its bytes is the assistant's
  bool spelled = false;      // some text reads as a special token, and is none for where it is from
};

// Special tokens are recognised in bytes that the template wrote, added tokens that are not special
// also in what the assistant wrote; everything else is encoded as the plain text it is, undivided.
EncodedChat encode_chat(const Tokenizer&, const MarkedText&);

// The template beside a tokenizer as it is written there; null where there is none.
nlohmann::ordered_json written_chat_template(const std::filesystem::path& tokenizer);

}  // namespace hearth
