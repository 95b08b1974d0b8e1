// Renders answers in OpenAI's format: complete responses, stream chunks, usage and
// log-probabilities. Pure functions of the engine's output.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "infer/engine.h"
#include "text/chat/tool_calls.h"

namespace hearth::inline serve {

// The fields that every part of a response repeats.
struct ResponseHead {
  bool chat = false;
  std::string id, model;
  int64_t created = 0;  // seconds since 1970
};

struct Usage {
  int64_t prompt = 0, completion = 0;
};

struct RenderedCall {
  int64_t index;  // among the calls of its choice
  std::string id;
  ToolCall call;
};

// A choice, or the part of one in a stream chunk.
struct ChoicePart {
  int64_t index = 0;
  std::string text = {};
  std::string finish_reason = {};  // empty: not finished
  const std::vector<TokenLogprob>* logprobs = nullptr;
  int64_t offset = 0;  // characters before `logprobs`
  bool opens = false;  // first chunk of a chat's choice, which names the role
  // Tool calls of a chat. In a stream, a call comes in two chunks: with its id and name, and with
  // its arguments (then `opened`).
  std::vector<RenderedCall> calls = {};
  bool opened = false;
};

// A token without a prediction, the first of a prompt: its log-probability is printed as null.
TokenLogprob unpredicted(int32_t token);

// A token's text; "bytes:\x.." if its bytes are not complete characters, "token_id:N" if it has no
// text. Tokens with different bytes have different texts.
std::string token_text(const Tokenizer&, int32_t token);
int64_t characters(std::string_view utf8);
int64_t characters_of(const Tokenizer&, int32_t token);  // those that begin in it

nlohmann::ordered_json render_response(const Tokenizer&, const ResponseHead&,
                                       std::span<const ChoicePart>, const Usage&);
// With `announces_usage` every chunk has a null usage; the last one has the values.
nlohmann::ordered_json render_chunk(const Tokenizer&, const ResponseHead&, const ChoicePart&,
                                    bool announces_usage);
nlohmann::ordered_json render_usage_chunk(const ResponseHead&, const Usage&);

// Bytes that are not valid UTF-8 become U+FFFD.
std::string dump_json(const nlohmann::ordered_json&);

}  // namespace hearth::inline serve
