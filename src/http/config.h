// HttpConfig: the address of an HTTP server, who may use it, and the limits of its connections.
// Each field is a flag of the commands that start a server.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hearth::inline http {

struct HttpConfig {
  std::string host = "127.0.0.1";
  int64_t port = 8080;
  std::string api_key = {}, cors_origin = {};
  std::vector<std::string> allowed_host = {};
  bool log_requests = false;
  std::string request_log = {};

  int64_t max_connections = 1024, workers = 2;
  int64_t max_header_bytes = 16 << 10, max_body_bytes = 4 << 20, max_pending_bytes = 0;
  int64_t max_output_bytes = 1 << 20;
  double header_seconds = 10, body_seconds = 30, idle_seconds = 60, write_seconds = 30;
  double drain_seconds = 30;

  template <class V>
  void visit(V&& v) {
    visit_address(v);
    v("request_log", request_log,
      "file to append one line of JSON about each request to; it may be moved while the server "
      "runs");
    v("max_body_bytes", max_body_bytes, "maximum bytes of a request's body; more is 413");
    v("max_pending_bytes", max_pending_bytes,
      "maximum bytes in the bodies of requests not yet started; more is 503; 0: 16 x "
      "max-body-bytes");
    v("body_seconds", body_seconds, "time limit for receiving a request's body; longer is 408");
    v("max_output_bytes", max_output_bytes,
      "maximum bytes of a stream, without echoed prompts, that its client has not read; then the "
      "stream is closed; echoed prompts may have 16 times as many, more is 400");
  }
  // The fields that also matter to a server that reads no bodies and paces its streams.
  template <class V>
  void visit_address(V&& v) {
    v("host", host, "address to listen on; 0.0.0.0 accepts connections from other machines");
    v("port", port, "port to listen on; 0: any free port");
    v("api_key", api_key,
      "key required by every route except /health and the pages; set HEARTH_API_KEY to keep it out "
      "of the process list");
    v("cors_origin", cors_origin, "web origin that may send requests, or *; empty: none");
    v("allowed_host", allowed_host,
      "additional Host names to accept, besides localhost and the address; repeat the flag");
    v("log_requests", log_requests, "write a line about each request to stderr");
    v("max_connections", max_connections, "maximum open connections; more are rejected with 503");
    v("workers", workers, "threads that read request bodies and render long answers");
    v("max_header_bytes", max_header_bytes, "maximum bytes of a request's header; more is 431");
    v("header_seconds", header_seconds,
      "time limit for receiving a request's header; longer is 408");
    v("idle_seconds", idle_seconds, "time limit between requests of a connection");
    v("write_seconds", write_seconds, "time limit for a client that reads none of its answer");
    v("drain_seconds", drain_seconds, "time for running requests to finish after SIGTERM");
  }

  int64_t pending_bytes() const {
    return max_pending_bytes ? max_pending_bytes : 16 * max_body_bytes;
  }
  // The echoes of a stream, which are all queued at its first tokens.
  int64_t echo_bytes() const { return 16 * max_output_bytes; }
  // Throws a usage error for an invalid value.
  void check() const;
};

// Throws a usage error unless `low` <= `value` <= `high`.
void check_flag(const char* flag, int64_t value, int64_t low, int64_t high);

}  // namespace hearth::inline http
