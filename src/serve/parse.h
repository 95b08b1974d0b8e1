// Parses request bodies: pure functions from text to a call. For any input, the result is within
// the limits or an HttpError names the wrong field.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "http/http.h"
#include "infer/engine.h"
#include "serve/chat_prompt.h"
#include "serve/config.h"
#include "text/chat/tool_calls.h"

namespace hearth::inline serve {

using Tokens = std::vector<int32_t>;
using Prompt = std::variant<std::string, Tokens>;

// The tools of a chat request.
struct ToolUse {
  enum class Choice : uint8_t { none, automatic, required } choice = Choice::none;
  std::string named = {};        // required: this one; empty: any
  nlohmann::ordered_json tools;  // as the request has them
  bool parallel = true;          // an answer may have several calls
  // Whether the answer may call a tool whose arguments must match its schema.
  bool strict() const;
  // The functions that an answer may call, in the form of ConstraintSpec. Where a call is not
  // required, only a strict tool constrains its arguments.
  nlohmann::ordered_json callable() const;
  explicit operator bool() const { return choice != Choice::none; }
};

// What the chat template renders.
struct Conversation {
  nlohmann::ordered_json messages;  // of a chat: at least one; contents are text
  ChatEnd end = ChatEnd::opening;
  nlohmann::ordered_json variables;  // further ones of the template
  ToolUse tools = {};
};

// How a prompt of text becomes tokens.
struct TextEncoding {
  std::optional<bool> special = {};  // special tokens in the text are encoded as their ids
  bool around = true;                // add what the tokenizer puts around a prompt: bos, eos
};

// A request to /v1/completions or /v1/chat/completions; either `prompts` or `messages` is empty.
struct CompletionCall : Conversation {
  bool chat = false;
  std::string model = {};            // empty: the first model
  std::vector<Prompt> prompts = {};  // for a completion: at least one
  TextEncoding text = {};
  ToolFormat tool_format = ToolFormat::none;  // how the answer may call tools; set by the preparer
  ConstraintSpec constraint = {};             // what the answer must match
  Request request = {};                       // without its prompt and constraint
  std::optional<int64_t> max_tokens;          // absent: that of request.sampling, if there is room
  std::optional<uint64_t> seed;               // absent: random
  bool stream = false, include_usage = false, echo = false;

  bool logprobs() const { return request.sampling.logprobs >= 0; }
};

// The sampling fields of a model, for those that a body omits. May throw for an unknown model.
using DefaultsOf = std::function<SamplingSpec(const std::string& model)>;
CompletionCall parse_completion_request(std::string_view body, const ServeConfig& limits = {},
                                        const DefaultsOf& = {});
CompletionCall parse_chat_request(std::string_view body, const ServeConfig& limits = {},
                                  const DefaultsOf& = {});

// Either `prompt` or `messages` is empty.
struct TokenizeCall : Conversation {
  std::string model = {};
  std::string prompt = {};
  TextEncoding text = {};
};
TokenizeCall parse_tokenize_request(std::string_view body, const ServeConfig& limits = {});

struct DetokenizeCall {
  std::string model = {};
  Tokens tokens = {};
};
DetokenizeCall parse_detokenize_request(std::string_view body, const ServeConfig& limits = {});

}  // namespace hearth::inline serve
