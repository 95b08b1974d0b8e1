// ServeConfig: where the server listens and every limit it keeps, each a flag.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hearth {

struct ServeConfig {
  std::string host = "127.0.0.1";
  int64_t port = 8080;
  std::string api_key = {}, name = {}, cors_origin = {};
  std::vector<std::string> allowed_host = {};
  bool log_requests = false;

  int64_t batch = 32, queue = 256, speculate = 0;
  int64_t max_connections = 1024, workers = 2;
  int64_t max_header_bytes = 16 << 10, max_body_bytes = 4 << 20, max_json_depth = 32;
  int64_t max_pending_bytes = 0, max_messages = 4096;
  int64_t max_tokenize_bytes = 1 << 20, max_detokenize_ids = 1 << 17;
  int64_t max_prompt_tokens = 0, max_new_tokens = 65536, max_choices = 128, max_logprobs = 20;
  int64_t max_stop_strings = 16, max_stop_bytes = 1024;
  int64_t max_answer_entries = 1 << 19, max_output_bytes = 1 << 20;
  double header_seconds = 10, body_seconds = 30, idle_seconds = 60, write_seconds = 30;
  double drain_seconds = 30;

  template <class V>
  void visit(V&& v) {
    v("host", host, "address to listen on; 0.0.0.0 lets other machines in");
    v("port", port, "0: any free one");
    v("api_key", api_key, "asked of every route but /health; HEARTH_API_KEY keeps it off the list");
    v("name", name, "what the model is called; empty: its folder's name");
    v("cors_origin", cors_origin, "web origin that may call, or *; empty: none");
    v("allowed_host", allowed_host,
      "further Host names to answer to, beside localhost and the address; repeat the flag");
    v("log_requests", log_requests, "write a line about each request to stderr");
    v("batch", batch, "sequences in one step of the model");
    v("queue", queue, "sequences that may wait beyond them; more is 429");
    v("speculate", speculate, "most guesses a sequence has verified in a step; 0: none");
    v("max_connections", max_connections, "open at once; more is 503");
    v("workers", workers, "threads that read request bodies and render long answers");
    v("max_header_bytes", max_header_bytes, "of a request; more is 431");
    v("max_body_bytes", max_body_bytes, "of a request; more is 413");
    v("max_pending_bytes", max_pending_bytes,
      "of the bodies of all requests not yet started; more is 503; 0: 16 x max-body-bytes");
    v("max_json_depth", max_json_depth, "of a request's body");
    v("max_messages", max_messages, "of a chat, or of one request to /tokenize");
    v("max_tokenize_bytes", max_tokenize_bytes, "of text in a request to /tokenize");
    v("max_detokenize_ids", max_detokenize_ids, "of a request to /detokenize");
    v("max_prompt_tokens", max_prompt_tokens, "of one prompt; 0: the model's context");
    v("max_new_tokens", max_new_tokens, "prompts x n x max_tokens of a request");
    v("max_choices", max_choices, "prompts x n of a request");
    v("max_logprobs", max_logprobs, "alternatives for each token");
    v("max_stop_strings", max_stop_strings, "of a request");
    v("max_stop_bytes", max_stop_bytes, "of one stop string");
    v("max_answer_entries", max_answer_entries,
      "tokens x (logprobs + 1) of a request's choices, echoed tokens too");
    v("max_output_bytes", max_output_bytes, "of a stream that its client has not taken yet");
    v("header_seconds", header_seconds, "for a request's head to arrive");
    v("body_seconds", body_seconds, "for its body to arrive");
    v("idle_seconds", idle_seconds, "between requests of a connection");
    v("write_seconds", write_seconds, "for a client to take any of what is written to it");
    v("drain_seconds", drain_seconds, "for running requests to end after SIGTERM");
  }

  int64_t pending_bytes() const {
    return max_pending_bytes ? max_pending_bytes : 16 * max_body_bytes;
  }
  // Throws what is wrong with it.
  void check() const;
};

}  // namespace hearth
