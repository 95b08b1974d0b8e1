// Request bodies: pure functions from text to what was asked. Whatever the text, the result is
// within the limits or an HttpError says which field is wrong.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "infer/engine.h"
#include "serve/config.h"
#include "serve/http.h"

namespace hearth {

using Tokens = std::vector<int32_t>;
using Prompt = std::variant<std::string, Tokens>;

// Of /v1/completions and /v1/chat/completions; one of `prompts` and `messages` is empty.
struct CompletionCall {
  bool chat = false;
  std::string model = {};             // empty: whichever is served
  std::vector<Prompt> prompts = {};   // at least one of a completion
  nlohmann::ordered_json messages;    // contents are text; at least one of a chat
  nlohmann::ordered_json variables;   // for the chat template
  Request request = {};               // without its prompt
  std::optional<int64_t> max_tokens;  // absent: request.sampling's, as far as there is room
  std::optional<uint64_t> seed;       // absent: chosen anew
  bool stream = false, include_usage = false, echo = false;

  bool logprobs() const { return request.sampling.logprobs >= 0; }
};

// A sampling field that the body leaves out is that of `defaults`.
CompletionCall parse_completion_request(std::string_view body, const ServeConfig& limits = {},
                                        const SamplingSpec& defaults = {});
CompletionCall parse_chat_request(std::string_view body, const ServeConfig& limits = {},
                                  const SamplingSpec& defaults = {});

struct TokenizeCall {
  std::string model = {};
  std::string prompt = {};
  nlohmann::ordered_json messages;  // instead of the prompt
  bool special = false;             // special tokens in the prompt become their ids
  bool generation_prompt = true;    // of messages
};
TokenizeCall parse_tokenize_request(std::string_view body, const ServeConfig& limits = {});

struct DetokenizeCall {
  std::string model = {};
  Tokens tokens = {};
};
DetokenizeCall parse_detokenize_request(std::string_view body, const ServeConfig& limits = {});

}  // namespace hearth
