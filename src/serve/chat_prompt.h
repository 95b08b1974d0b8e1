// ChatPrompt: encodes a conversation as the prompt of a model, with the chat template of its
// folder, or as plain "User: .. Assistant:" lines if it has none.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "infer/sampler.h"
#include "model/files/folder.h"
#include "text/chat/chat_template.h"

namespace hearth::inline serve {

// How a rendered conversation ends: with the opening of the assistant's turn, with the last message
// as the template closes it, or with the text of the last message as an answer to be continued.
enum class ChatEnd { opening, closed, unfinished };

class ChatPrompt {
 public:
  ChatPrompt(const ModelSource&, Tokenizer);
  ChatPrompt(std::optional<ChatTemplate>, Tokenizer, std::vector<int32_t> ends = {});

  bool has_template() const { return template_.has_value(); }
  ToolFormat tool_format() const { return template_ ? template_->tool_format() : ToolFormat::none; }
  // An unknown role that the template does not name is refused: most templates leave out such a
  // message without a word. Text of more than `max_bytes` cannot fit and is not encoded. Both are
  // an HttpError 400. A developer's message is a system message for a template without that role.
  std::vector<int32_t> encode(const nlohmann::ordered_json& messages,
                              const nlohmann::ordered_json& variables = {},
                              ChatEnd end = ChatEnd::opening, int64_t max_bytes = INT64_MAX) const;
  // Adds the tokens that end an answer to those that the request names.
  void add_stops(SamplingSpec&) const;

 private:
  nlohmann::ordered_json with_known_roles(nlohmann::ordered_json messages) const;
  std::optional<ChatTemplate> template_;
  Tokenizer tokenizer_;
  std::vector<int32_t> ends_;  // tokens that end an answer, besides eos
};

}  // namespace hearth::inline serve
