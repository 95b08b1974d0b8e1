// ServeConfig: the server's address and all its limits; each is a flag.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hearth::inline serve {

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
    v("host", host, "address to listen on; 0.0.0.0 accepts connections from other machines");
    v("port", port, "port to listen on; 0: any free port");
    v("api_key", api_key,
      "key required by every route except /health; set HEARTH_API_KEY to keep it out of the "
      "process list");
    v("name", name, "model name in the API; empty: the name of its folder");
    v("cors_origin", cors_origin, "web origin that may send requests, or *; empty: none");
    v("allowed_host", allowed_host,
      "additional Host names to accept, besides localhost and the address; repeat the flag");
    v("log_requests", log_requests, "write a line about each request to stderr");
    v("batch", batch, "maximum sequences per model step");
    v("queue", queue, "maximum sequences waiting for the batch; more are rejected with 429");
    v("speculate", speculate,
      "draft tokens verified per sequence and step (prompt lookup); 0: no speculation");
    v("max_connections", max_connections, "maximum open connections; more are rejected with 503");
    v("workers", workers, "threads that read request bodies and render long answers");
    v("max_header_bytes", max_header_bytes, "maximum bytes of a request's header; more is 431");
    v("max_body_bytes", max_body_bytes, "maximum bytes of a request's body; more is 413");
    v("max_pending_bytes", max_pending_bytes,
      "maximum bytes in the bodies of requests not yet started; more is 503; 0: 16 x "
      "max-body-bytes");
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
    v("max_output_bytes", max_output_bytes,
      "maximum bytes of a stream that its client has not read; then the stream is closed");
    v("header_seconds", header_seconds, "time limit for receiving a request's header");
    v("body_seconds", body_seconds, "time limit for receiving a request's body");
    v("idle_seconds", idle_seconds, "time limit between requests of a connection");
    v("write_seconds", write_seconds, "time limit for a client that reads none of its answer");
    v("drain_seconds", drain_seconds, "time for running requests to finish after SIGTERM");
  }

  int64_t pending_bytes() const {
    return max_pending_bytes ? max_pending_bytes : 16 * max_body_bytes;
  }
  // Throws a usage error for an invalid value.
  void check() const;
};

}  // namespace hearth::inline serve
