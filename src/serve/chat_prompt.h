// ChatPrompt: encodes a conversation as the prompt of a model, with the chat template of its
// folder, or as plain "User: .. Assistant:" lines if it has none.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "infer/sampler.h"
#include "text/chat/chat_template.h"

namespace hearth::inline serve {

class ChatPrompt {
 public:
  ChatPrompt(const std::filesystem::path& folder, Tokenizer);
  ChatPrompt(std::optional<ChatTemplate>, Tokenizer, std::vector<int32_t> ends = {});

  bool has_template() const { return template_.has_value(); }
  ToolFormat tool_format() const { return template_ ? template_->tool_format() : ToolFormat::none; }
  // Text of more than `max_bytes` cannot fit and is not encoded: HttpError 400.
  std::vector<int32_t> encode(const nlohmann::ordered_json& messages,
                              const nlohmann::ordered_json& variables = {},
                              bool generation_prompt = true, int64_t max_bytes = INT64_MAX) const;
  // Adds the tokens that end an answer to those that the request names.
  void add_stops(SamplingSpec&) const;

 private:
  std::optional<ChatTemplate> template_;
  Tokenizer tokenizer_;
  std::vector<int32_t> ends_;  // tokens that end an answer, besides eos
};

}  // namespace hearth::inline serve
