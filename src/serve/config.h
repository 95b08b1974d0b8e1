// ServeConfig: the server's address and all its limits; each is a flag.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "http/config.h"
#include "infer/engine.h"

namespace hearth::inline serve {

struct ServeConfig {
  HttpConfig http = {};
  std::vector<std::string> name = {};

  int64_t batch = 32, queue = 256, step_tokens = 0, step_ms = 50, speculate = 0;
  Draft draft = Draft::lookup;
  int64_t max_json_depth = 32, max_messages = 4096;
  int64_t max_tokenize_bytes = 1 << 20, max_detokenize_ids = 1 << 17;
  int64_t max_prompt_tokens = 0, max_new_tokens = 65536, max_choices = 128, max_logprobs = 20;
  int64_t max_stop_strings = 16, max_stop_bytes = 1024;
  int64_t max_answer_entries = 1 << 19;

  template <class V>
  void visit(V&& v) {
    http.visit(v);
    v("name", name,
      "model name in the API, default: the name of its folder; repeat the flag for several models");
    v("batch", batch, "maximum sequences per step of a model");
    v("queue", queue,
      "maximum sequences waiting for the batch of a model; more are rejected with 429");
    v("step_tokens", step_tokens,
      "maximum tokens per step of a model, of prompts and completions together; 0: 2048 on a GPU, "
      "512 on the CPU");
    v("step_ms", step_ms,
      "milliseconds that a step with prompts should take at most while other sequences generate: "
      "if measured steps were slower, it takes fewer tokens of the prompts; 0: no limit");
    v("speculate", speculate,
      "draft tokens verified per sequence and step; 0: none, or 4 with --draft lookup, one per "
      "module with --draft mtp");
    v("draft", draft,
      "where draft tokens come from: earlier text, or modules of multi-token prediction");
    v("max_json_depth", max_json_depth, "maximum nesting of a request's JSON");
    v("max_messages", max_messages, "maximum messages of a chat or of a request to /tokenize");
    v("max_tokenize_bytes", max_tokenize_bytes, "maximum bytes of text in a request to /tokenize");
    v("max_detokenize_ids", max_detokenize_ids, "maximum ids in a request to /detokenize");
    v("max_prompt_tokens", max_prompt_tokens, "maximum tokens of a prompt; 0: the model's context");
    v("max_new_tokens", max_new_tokens, "maximum of prompts x n x max_tokens in a request");
    v("max_choices", max_choices, "maximum of prompts x n in a request");
    v("max_logprobs", max_logprobs, "maximum alternatives per token");
    v("max_stop_strings", max_stop_strings, "maximum stop strings of a request");
    v("max_stop_bytes", max_stop_bytes, "maximum bytes of a stop string");
    v("max_answer_entries", max_answer_entries,
      "maximum of tokens x (logprobs + 1) over a request's choices, including echoed tokens");
  }

  // Throws a usage error for an invalid value.
  void check() const;
};

}  // namespace hearth::inline serve
