// HTTP requests and responses as the routes see them, and their error type. No sockets.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sys/error.h"

namespace hearth::inline http {

struct HttpRequest {
  std::string method, path;  // path without the query
  std::string query = {};    // after the "?", still percent-encoded
  std::string body = {};
  std::string authorization = {}, host = {}, origin = {}, content_type = {}, content_encoding = {};
  std::string if_none_match = {}, accept_encoding = {}, last_event_id = {};
  std::chrono::steady_clock::time_point arrived = std::chrono::steady_clock::now();

  bool is_head() const { return method == "HEAD"; }
};

struct HttpResponse {
  int status = 200;
  std::string body = {};
  std::string type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
};

// Becomes {"error": {"message", "type", "param", "code"}} with its status.
class HttpError : public std::runtime_error {
 public:
  HttpError(int status, std::string message, std::string code = {}, std::string param = {})
      : std::runtime_error(std::move(message)),
        status(status),
        code(std::move(code)),
        param(std::move(param)) {}
  int status;
  std::string code, param;  // empty: null
};

// A request with a wrong field `param`: 400.
template <class... A>
[[noreturn]] void refuse(std::string param, fmt::format_string<A...> what, A&&... args) {
  std::string message = fmt::format("[{}] {}", param, fmt::format(what, std::forward<A>(args)...));
  throw HttpError(400, std::move(message), "invalid_value", std::move(param));
}

// A usage error is the client's, 400, and names the field; any other one is 500.
HttpError http_error(const Error&);

HttpResponse error_response(const HttpError&);
std::string error_body(const HttpError&);

// Compares two secrets in a time that depends on neither.
bool same_secret(std::string_view a, std::string_view b);

// One server-sent event. The data, the name and the id contain no line break.
struct ServerEvent {
  std::string_view data;
  std::string_view name = {}, id = {};  // empty: the event has none
  bool echoes = false;  // the request's own text: a client that has not read it is not slow
};

// What a request log says about an answer; -1: unknown.
struct AnswerNote {
  std::string id = {}, model = {}, finish_reason = {};
  int64_t prompt_tokens = -1, completion_tokens = -1;
  double queue_ms = -1, first_token_ms = -1;  // since the engine got it, since it arrived
};

// The output to the client of one request. Used on the network thread.
class Client {
 public:
  virtual ~Client() = default;
  virtual void respond(HttpResponse) = 0;  // a complete response
  virtual void begin_events() = 0;         // or a stream of server-sent events:
  // False: the client has left or reads too slowly. Nothing more will reach it.
  virtual bool send_event(const ServerEvent&) = 0;
  // Sends a comment, which clients ignore: it shows proxies and clients that the stream is alive.
  virtual bool send_comment() = 0;
  virtual void end_events() = 0;
  // Bytes of the stream that were not sent to the client yet.
  virtual size_t unsent() const = 0;
  // For the log. Call before the answer ends.
  virtual void note_answer(const AnswerNote&) = 0;
};

}  // namespace hearth::inline http
