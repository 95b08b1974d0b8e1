// Prompts for rollouts, as JSON rows that also carry what the rewards need.
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

namespace hearth::inline data {

struct PromptRow {
  nlohmann::json row;  // the row's JSON object
  std::string prompt;  // the text given to the model
  std::string where;   // "file:row"
  // Marks of the prompt's bytes, as in text/chat/marked_text.h; empty: all came with the row.
  std::string marks = {};
  bool rendered = false;  // by a chat template
  MarkedText marked() const;
  // The expected answer: the first of "answer", "ans", "completion" and "output"; a number as
  // written.
  std::optional<std::string> answer() const;
};

struct PromptSpec {
  // A text around the prompt, which replaces the first {}. The form itself may contain special
  // tokens.
  std::string form = "{}";
  // The template for prompts that are message lists or instructions, loaded on first use; none:
  // such prompts are an error.
  std::function<const ChatTemplate&()> chat = {};
  bool message = false;                 // treat every text as a user message and apply the template
  std::optional<std::time_t> now = {};  // date for templates; default: the current time
};

// Reads JSON lines, or one JSON list, of objects with "prompt", "question", "original_text", or
// "instruction" with "input"; without a form an instruction is a user message in the chat template.
std::vector<PromptRow> read_prompts(const std::filesystem::path&, const PromptSpec& = {});

// The ids given to the model, with the tokens that the tokenizer adds around a text without
// template.
std::vector<int32_t> prompt_tokens(const PromptRow&, const Tokenizer&);

// SHA-256 over everything of the rows that the model and the rewards see, in order.
std::string digest_of(std::span<const PromptRow>);

}  // namespace hearth::inline data
