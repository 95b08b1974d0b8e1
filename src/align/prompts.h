// Prompts to make completions of, with what their rewards need to know: rows of JSON.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace hearth {

struct PromptRow {
  nlohmann::json row;  // an object, as it stands in the file
  std::string prompt;  // its text, as the model is given it
  std::string where;   // "file:row"
  // What the completion should come to: "answer", "ans", "completion" or "output", the first there
  // is; a number as it is written.
  std::optional<std::string> answer() const;
};

// JSON lines, or one JSON list, of objects whose text is "prompt", "question", "original_text", or
// "instruction" with "input". `form` is put around it: its first {} is where the text goes.
std::vector<PromptRow> read_prompts(const std::filesystem::path&, std::string_view form = "{}");

// SHA-256 over what the model and the rewards are given of the rows, in their order.
std::string digest_of(std::span<const PromptRow>);

}  // namespace hearth
