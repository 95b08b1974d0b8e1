// Prompts to make completions of, with what their rewards need to know: rows of JSON.
#pragma once

#include <ctime>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/chat/chat_template.h"

namespace hearth {

struct PromptRow {
  nlohmann::json row;  // an object, as it stands in the file
  std::string prompt;  // its text, as the model is given it
  std::string where;   // "file:row"
  // Of the prompt's bytes, as in text/chat/marked_text.h; empty: all of them came with the row.
  std::string marks = {};
  bool rendered = false;  // by a chat template
  MarkedText marked() const;
  // What the completion should come to: "answer", "ans", "completion" or "output", the first there
  // is; a number as it is written.
  std::optional<std::string> answer() const;
};

struct PromptSpec {
  // Put around a text, whose place is its first {}. What it says itself may be special tokens.
  std::string form = "{}";
  // For prompts that are lists of messages or instructions, asked for with the first of them; none:
  // refused.
  std::function<const ChatTemplate&()> chat = {};
  bool message = false;                 // every text is a user's message, through that template
  std::optional<std::time_t> now = {};  // for templates that print a date; the clock's where absent
};

// JSON lines, or one JSON list, of objects whose text is "prompt", "question", "original_text", or
// "instruction" with "input", which without a form is a user's message in the chat template.
std::vector<PromptRow> read_prompts(const std::filesystem::path&, const PromptSpec& = {});

// As the model is given it, with what the tokenizer puts around a text that no template wrote.
std::vector<int32_t> prompt_tokens(const PromptRow&, const Tokenizer&);

// SHA-256 over what the model and the rewards are given of the rows, in their order.
std::string digest_of(std::span<const PromptRow>);

}  // namespace hearth
