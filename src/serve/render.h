// Answers as OpenAI's clients read them: whole responses, the chunks of a stream, usage and
// log-probabilities. Pure functions of what the engine gave.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "infer/engine.h"

namespace hearth {

// What every part of one response says of it.
struct ResponseHead {
  bool chat = false;
  std::string id, model;
  int64_t created = 0;  // seconds since 1970
};

struct Usage {
  int64_t prompt = 0, completion = 0;
};

// A choice, or the piece of one that a chunk carries.
struct ChoicePart {
  int64_t index = 0;
  std::string text = {};
  std::string finish_reason = {};  // empty: it goes on
  const std::vector<TokenLogprob>* logprobs = nullptr;
  int64_t offset = 0;  // characters before `logprobs`
  bool opens = false;  // the first chunk of a chat's choice names its role
};

// A token nothing predicts, the first of a prompt: its log-probability prints as null.
TokenLogprob unpredicted(int32_t token);

// A token's text; "bytes:\x.." where its bytes are no whole characters, "token_id:N" where it has
// none. No two tokens of a vocabulary whose bytes differ look alike.
std::string token_text(const Tokenizer&, int32_t token);
int64_t characters(std::string_view utf8);

nlohmann::ordered_json render_response(const Tokenizer&, const ResponseHead&,
                                       std::span<const ChoicePart>, const Usage&);
// With `announces_usage` every chunk says that it has none: the last one will.
nlohmann::ordered_json render_chunk(const Tokenizer&, const ResponseHead&, const ChoicePart&,
                                    bool announces_usage);
nlohmann::ordered_json render_usage_chunk(const ResponseHead&, const Usage&);

// JSON cannot carry bytes that are not UTF-8: they become U+FFFD.
std::string dump_json(const nlohmann::ordered_json&);

}  // namespace hearth
